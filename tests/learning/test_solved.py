"""The recipes, as they stand, solve their tasks with every seed; about a minute each on one core."""

import pytest

from tests.learning.test_soon import CARTPOLE, final_return
from tests.system.support import TOP, run
from tests.unit.test_recipes import recipes

pytestmark = pytest.mark.learning

SOLVED = {"acrobot": -100, "cartpole": 475, "lunarlander": 200, "pendulum": -200}
"""Greedy mean of 20 episodes. gymnasium's own thresholds, except for Pendulum-v1, which has none."""

GATED = [name for name in recipes() if name.partition(".")[0] in SOLVED]
"""Whatever is added to these files has to pass, too."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recipe", GATED)
def test_one_rank(tmp_path, recipe, seed):
    ended = run(tmp_path, f"seed={seed}", recipe=str(TOP / "jobs" / recipe), ranks=1, timeout_s=900)
    assert final_return(ended) >= SOLVED[recipe.partition(".")[0]]
    lag = ended.describe()["lag"]
    config = recipes()[recipe]()
    assert lag["max"] <= config.lag.max_lag
    assert config.scheme == "synchronous" or lag["mean"] > 0.5, (
        "an asynchronous recipe has to learn from old data"
    )


@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_three_ranks(tmp_path, algorithm):
    ended = run(tmp_path, recipe=f"{CARTPOLE}:{algorithm}", ranks=3, timeout_s=900)
    assert final_return(ended) >= SOLVED["cartpole"]
    assert len(ended.describe()["ranks"]) == 3
