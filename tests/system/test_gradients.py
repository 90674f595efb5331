"""Actors that send gradients: how late they are, and that nothing else is different.

tests/mpi/test_resume_algorithms.py stops such a run and goes on with it.
"""

from hpcrl.audit.verdict import audit
from tests.system.support import TOY, lags, run

A3C = TOY | {
    "env": {"id": "chain", "engine": "toy", "num_envs": 5},
    "algorithm": {"name": "a3c", "unroll_length": 8},
    "evaluation": {"episodes": 0},
    "budget": {"env_steps": 1200},
}


def test_lag_is_recorded_and_within_the_bound(tmp_path):
    ended = run(tmp_path, "ranks.actors=2", "lag.max_lag=2", recipe=A3C)
    summary, updates, lag = ended.describe(), ended.table("updates"), ended.table("lag")
    assert ended.code == 0 and audit(ended.run_dir).proved and 1 <= lags(ended)[-1] <= 2
    assert lag["update"].tolist() == updates["update"].tolist()  # a gradient is of one version
    assert lag["env_steps"].sum() == summary["env_steps"] == updates["env_steps"][-1] >= 1200
    assert 2 * 8 * 3 >= lag["env_steps"].max() > 8  # columns of one actor, of five
    assert (updates["valid_fraction"] * 24).round().astype(int).tolist() == lag["env_steps"].tolist()


def test_one_actor_in_lockstep_is_a2c(tmp_path):
    settings = ("deterministic=true", "lag.max_lag=0")
    gradients = run(tmp_path / "gradients", *settings, ranks=1, recipe=A3C)
    trajectories = run(tmp_path / "trajectories", *settings, "algorithm.name=a2c", ranks=1, recipe=A3C)
    assert gradients.weights() == trajectories.weights()
