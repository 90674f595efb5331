"""What actors of off-policy algorithms do beside acting: they explore, each in its way, and give first priorities."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.algorithms import make_algorithm, stored_spec
from hpcrl.comm.ranks import Placement
from hpcrl.config import RunConfig
from hpcrl.data.trajectory import TrajectoryLayout
from hpcrl.envs import make_env_spec
from hpcrl.roles.collect import Collector
from hpcrl.roles.timers import Timers


@pytest.fixture
def collected(monkeypatch):
    """A trajectory of the second of two actors, in two groups, and what its algorithm was asked."""
    config = RunConfig.parse(
        {
            "name": "test",
            "env": {"id": "counting", "engine": "toy", "num_envs": 9, "num_groups": 2},
            "model": {"hidden_sizes": [8]},
            "algorithm": {"name": "apex", "unroll_length": 5},
            "replay": {"sampling": "prioritized"},
            "ranks": {"actors": 2},
        }
    )
    env = make_env_spec(config.env)
    algorithm = make_algorithm(config, env)
    asked = SimpleNamespace(exploration=[], act=[], fields=None)

    def exploration(envs, num_envs, env_steps):
        asked.exploration.append((envs.tolist(), num_envs, env_steps))
        return envs.astype(np.float32)

    def act(obs, rng, *, greedy=False, exploration=None):
        asked.act.append(exploration.tolist())
        return {"action": np.zeros(len(obs), np.int64)}

    def first_priorities(fields):
        asked.fields = {name: array.copy() for name, array in fields.items()}
        return np.arange(20, dtype=np.float32).reshape(5, 4)

    for name, function in (
        ("exploration", exploration),
        ("act", act),
        ("first_priorities", first_priorities),
    ):
        monkeypatch.setattr(algorithm, name, function)
    session = SimpleNamespace(
        config=config,
        rng=lambda placement, purpose: np.random.default_rng(0),
        record=lambda table, rows: None,
        world=SimpleNamespace(waiter=SimpleNamespace(work=lambda: None)),
        cuts=SimpleNamespace(saved=None),
        timers=Timers(),
    )
    collector = Collector(session, Placement(1, "actor", 1), algorithm)
    layout = TrajectoryLayout(stored_spec(config, env, algorithm, 5))
    row = layout.allocate(1, poison=True)[0]
    trajectory = layout.begin(row, attempt=0, version=0, actor=1, grant=0, envs=collector.envs)
    assert collector.collect(trajectory, 0, lambda: False, env_steps=77)
    return asked, trajectory


def test_each_environment_explores_in_its_own_way_for_a_whole_trajectory(collected):
    asked, _ = collected
    assert asked.exploration == [([5, 6], 9, 77), ([7, 8], 9, 77)]
    assert asked.act == [[5, 6], [7, 8]] * 5


def test_first_priorities_are_of_the_columns_that_are_used(collected):
    asked, trajectory = collected
    assert "priority" not in asked.fields
    assert asked.fields["obs"].shape[:2] == (6, 4)
    np.testing.assert_array_equal(asked.fields["reward"], trajectory.fields["reward"][:, :4])
    priority = trajectory.fields["priority"]
    np.testing.assert_array_equal(priority[:, :4], np.arange(20).reshape(5, 4))
    assert not priority[:, 4:].any()
