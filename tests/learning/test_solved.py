"""The CartPole recipes, as they stand, solve CartPole; minutes each."""

import pytest

from tests.learning.test_soon import CARTPOLE, final_return
from tests.system.support import run

pytestmark = pytest.mark.learning

SOLVED = 475
"""gymnasium's threshold for CartPole-v1; 500 is the most there is."""


def test_impala_on_three_ranks(tmp_path):
    ended = run(tmp_path, recipe=f"{CARTPOLE}:impala", timeout_s=900)
    assert final_return(ended) >= SOLVED
    assert ended.describe()["lag"]["max"] <= 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_ppo(tmp_path, ranks):
    ended = run(tmp_path, recipe=f"{CARTPOLE}:ppo", ranks=ranks, timeout_s=900)
    assert final_return(ended) >= SOLVED
    assert len(ended.describe()["ranks"]) == ranks


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recipe", ["a2c", "a3c", "decoupled_ppo", "impact"])
def test_other_algorithms(tmp_path, recipe, seed):
    ended = run(tmp_path, f"seed={seed}", recipe=f"{CARTPOLE}:{recipe}", timeout_s=900)
    assert final_return(ended) >= SOLVED
