"""Both algorithms learn something in seconds; a sign error or a wrong mask does not get this far."""

import pytest

from tests.system.support import TOP, run

CARTPOLE = str(TOP / "jobs" / "cartpole.py")
RANDOM_RETURN = 22
PRECISIONS = ["float32", pytest.param("bfloat16", marks=pytest.mark.learning)]


def final_return(ended):
    assert ended.code == 0, ended.stderr
    evaluation = ended.describe()["evaluation"]
    assert evaluation["n"] == 20
    return evaluation["mean"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_ppo_in_a_fifth_of_its_budget(tmp_path, precision):
    settings = ("budget.env_steps=40000", f"model.precision={precision}")
    ended = run(tmp_path, *settings, recipe=f"{CARTPOLE}:ppo", ranks=2)
    assert final_return(ended) > 150 > 5 * RANDOM_RETURN


@pytest.mark.parametrize("precision", PRECISIONS)
def test_impala_in_a_fifth_of_its_budget(tmp_path, precision):
    """In one process, every batch exactly one update late: the same run on every machine with equal arithmetic."""
    settings = ("budget.env_steps=500000", "deterministic=true", "seed=1", f"model.precision={precision}")
    ended = run(tmp_path, *settings, recipe=f"{CARTPOLE}:impala", ranks=1)
    assert ended.describe()["lag"]["mean"] > 0.9
    assert final_return(ended) > 150 > 5 * RANDOM_RETURN
