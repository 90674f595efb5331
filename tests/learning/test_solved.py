"""The recipes, as they stand, solve their tasks with every seed; about a minute each on one core."""

import pytest

from tests.learning.test_soon import CARTPOLE, final_return
from tests.system.support import TOP, run
from tests.unit.test_recipes import recipes

pytestmark = pytest.mark.learning

SOLVED = {"acrobot": -100, "cartpole": 475, "lunarlander": 200, "pendulum": -200}
"""Greedy mean of 20 episodes. gymnasium's own thresholds, except for Pendulum-v1, which has none."""

NOT_TRAINED = {"lunarlander.py:dqn"}
"""Their docstrings say so."""
GATED = {
    name: make
    for name, make in recipes().items()
    if name.partition(".")[0] in SOLVED and name not in NOT_TRAINED
}
"""Whatever is added to these files has to pass, too."""


def late(config):
    """Settings under which one process trains on late data as a pipeline does; by itself it would have fresh ones."""
    if config.scheme == "synchronous" or config.algorithm.uses_replay:
        return []
    if config.algorithm.name == "decoupled_ppo":
        return ["scheme=synchronous", f"lag.injection={config.lag.max_lag}"]
    reused_for = config.lag.max_lag - config.max_lag_when_new
    return ["deterministic=true", f"lag.max_lag={reused_for + 1}"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recipe", GATED)
def test_one_rank(tmp_path, recipe, seed):
    config = GATED[recipe]()
    settings = [f"seed={seed}", *late(config)]
    ended = run(tmp_path, *settings, recipe=str(TOP / "jobs" / recipe), ranks=1, timeout_s=900)
    assert final_return(ended) >= SOLVED[recipe.partition(".")[0]]
    assert (ended.describe()["lag"]["mean"] > 0.9) == (config.scheme == "pipeline")


@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_three_ranks(tmp_path, algorithm):
    ended = run(tmp_path, recipe=f"{CARTPOLE}:{algorithm}", ranks=3, timeout_s=900)
    assert final_return(ended) >= SOLVED["cartpole"]
    assert len(ended.describe()["ranks"]) == 3


@pytest.mark.parametrize("seed", range(3))
def test_apex_on_all_its_ranks(tmp_path, seed):
    """Three actors, two shards of the replay memory, two learners."""
    ended = run(tmp_path, f"seed={seed}", recipe=f"{CARTPOLE}:apex", ranks=7, timeout_s=900)
    assert final_return(ended) >= SOLVED["cartpole"]
    roles = [rank["role"] for rank in ended.describe()["ranks"]]
    assert sorted(roles) == ["actor"] * 3 + ["learner"] * 2 + ["replay"] * 2
