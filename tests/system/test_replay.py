"""Runs with a replay memory: two actors, two shards, two learners, killed and resumed; also with other ranks."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.comm.ranks import Placement
from hpcrl.config import RunConfig
from hpcrl.data.replay_memory import ReplayMemory
from hpcrl.launch.play import make_specs
from hpcrl.roles.memory_state import make_limiter, open_memory
from hpcrl.storage import checkpoint
from tests.system.support import run, start

BUDGET = 700
RECIPE = {
    "name": "replayed",
    "deterministic": True,
    "env": {"id": "chain", "engine": "toy", "num_envs": 7},
    "model": {"hidden_sizes": [8]},
    "algorithm": {"name": "apex", "unroll_length": 8, "batch_size": 9, "target_update_updates": 5},
    "replay": {"capacity": 350, "min_size": 100, "samples_per_insert": 1.5, "sampling": "prioritized"},
    "ranks": {"actors": 3, "replay": 2, "learners": 2},
    "budget": {"env_steps": BUDGET},
    "evaluation": {"episodes": 2},
    "checkpoint": {"every_updates": 10, "every_seconds": None, "keep": 100},
    "storage": {"flush_interval_s": 0.1},
}
"""Shares are uneven: five and two environments to a shard, five and four samples to a learner."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), recipe=RECIPE)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Killed some updates after its third checkpoint, of which there are about ten."""
    folder = tmp_path_factory.mktemp("killed")
    with start(folder, recipe=RECIPE) as running:
        running.until(lambda: running.run_dir is not None and len(checkpoint.find_sets(running.run_dir)) >= 3)
        os.kill(running.pids()["replay 1"], signal.SIGKILL)
        ended = running.wait()
    assert ended.code == 3
    return ended


def check_ratio(rows):
    """Every batch was drawn when samples_per_insert allowed it, on every shard, in every attempt."""
    replay = RECIPE["replay"]
    for shard, (envs, batch) in enumerate(((5, 6), (2, 3))):
        own = rows[rows["role_rank"] == shard]
        allowed = replay["samples_per_insert"] * np.maximum(own["inserted"] - np.ceil(100 * envs / 7), 0)
        assert (own["sampled"] == batch * own["update"]).all()
        assert np.abs(allowed - own["sampled"]).max() <= max(batch, replay["samples_per_insert"] * 8 * envs)


def test_a_run_from_end_to_end(whole):
    assert whole.code == 0, whole.stderr
    updates, rows = whole.table("updates"), whole.table("replay")
    check_ratio(rows)
    assert len(rows) == 2 * len(updates)
    inserted = [rows["inserted"][rows["update"] == update].sum() for update in updates["update"]]
    np.testing.assert_array_equal(updates["env_steps"], inserted)
    assert updates["env_steps"][-2] < BUDGET <= updates["env_steps"][-1]
    assert updates["lag_max"].max() > 1
    assert (updates["lag_min"] >= 0).all()
    assert not len(whole.table("trajectories"))
    summary = whole.describe()
    assert summary["evaluation"]["n"] == 2
    assert summary["replay"]["sampled"] == 9 * len(updates)
    assert summary["lag"]["max"] == updates["lag_max"].max()


def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(killed, whole):
    """Memory, priorities, cursors, random numbers and limiter are those that were saved: else the weights differ."""
    resumed = run(killed.folder, recipe=str(killed.run_dir), resume="must")
    assert resumed.weights() == whole.weights()
    check_ratio(resumed.table("replay"))
    for name in ("inserted", "sampled", "priority_total", "size"):
        np.testing.assert_array_equal(resumed.table("replay")[name], whole.table("replay")[name])
