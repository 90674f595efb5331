"""A policy with a memory learns what one without cannot."""

import pytest

from tests.system.support import TOP, run

RECALL = str(TOP / "jobs" / "memory.py")
CHANCE = 0.25


def final_return(ended):
    assert ended.code == 0, ended.stderr
    evaluation = ended.describe()["evaluation"]
    assert evaluation["n"] == 200
    return evaluation["mean"]


def test_a_short_delay_soon(tmp_path):
    """In seconds: two cues, and two env_steps to keep them."""
    settings = ("env.kwargs.size=2", "env.kwargs.delay=2", "budget.env_steps=15000")
    assert final_return(run(tmp_path, *settings, recipe=f"{RECALL}:gru", ranks=1)) >= 0.95


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recipe", ["gru", "lstm", "impala", "r2d2"])
def test_recurrent_policies_solve_it(tmp_path, recipe, seed):
    ended = run(tmp_path, f"seed={seed}", recipe=f"{RECALL}:{recipe}", ranks=1, timeout_s=900)
    assert final_return(ended) >= 0.95


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_others_stay_at_chance(tmp_path, seed):
    """Of 200 episodes; four standard deviations."""
    ended = run(tmp_path, f"seed={seed}", recipe=f"{RECALL}:feedforward", ranks=1, timeout_s=900)
    assert abs(final_return(ended) - CHANCE) < 4 * (CHANCE * (1 - CHANCE) / 200) ** 0.5
