"""Runs with a replay memory: three actors, two shards, two learners, killed and resumed; also with other ranks."""

import os
import shutil
import signal
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.audit.verdict import audit
from hpcrl.comm.ranks import Placement
from hpcrl.config import ConfigError, RunConfig
from hpcrl.launch.rank import make_specs
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


def replay_rows(ended):
    """Of the batches that were trained on; one may have been drawn ahead when the run ended."""
    rows = np.sort(ended.table("replay"), order=["update", "role_rank"])
    return rows[rows["update"] <= ended.describe()["updates"]]


def check_ratio(rows):
    """Every batch was drawn when samples_per_insert allowed it, on every shard, in every attempt."""
    ratio = RECIPE["replay"]["samples_per_insert"]
    for shard, (envs, batch) in enumerate(((5, 6), (2, 3))):
        own = rows[rows["role_rank"] == shard]
        allowed = ratio * np.maximum(own["inserted"] - np.ceil(100 * envs / 7), 0)
        assert (own["sampled"] == batch * own["update"]).all()
        assert np.abs(allowed - own["sampled"]).max() <= max(batch, ratio * 8 * envs)


def test_a_run_from_end_to_end(whole):
    assert whole.code == 0, whole.stderr
    updates, rows = whole.table("updates"), replay_rows(whole)
    check_ratio(rows)
    assert rows["update"].tolist() == np.repeat(updates["update"], 2).tolist()
    np.testing.assert_array_equal(updates["env_steps"], rows["inserted"].reshape(-1, 2).sum(axis=1))
    assert updates["env_steps"][-2] < BUDGET <= updates["env_steps"][-1]
    assert updates["lag_max"].max() > 1
    assert (updates["lag_min"] >= 0).all()
    assert not len(whole.table("trajectories"))
    summary = whole.describe()
    assert summary["evaluation"]["n"] == 2
    assert summary["replay"]["sampled"] >= 9 * len(updates)
    assert summary["lag"]["max"] == updates["lag_max"].max()
    with pytest.raises(ConfigError, match="samples from a replay memory"):
        audit(whole.run_dir)


def memories(killed, replay, actors, saved):
    """Those of so many shards, as a run that goes on with them would have."""
    ranks = {"actors": actors, "replay": replay, "learners": 1}
    config = RunConfig.parse(RECIPE | {"ranks": ranks})
    env, spec, _ = make_specs(config, "cpu")
    session = SimpleNamespace(config=config, env_spec=env, trajectory_spec=spec)
    session.cuts = SimpleNamespace(saved=saved, first_update=saved.update)
    session.record = lambda table, rows: None
    session.rng = lambda placement, purpose: np.random.default_rng(placement.role_rank)
    limiters = [make_limiter(config, shard) for shard in range(replay)]
    placements = [Placement(shard, "replay", shard) for shard in range(replay)]
    return [
        (open_memory(session, placement, limiter)[0], limiter)
        for placement, limiter in zip(placements, limiters, strict=True)
    ]


def contents(memory):
    """Every transition that can be drawn, with its priority, as bytes."""
    state = memory.state()
    slots = np.flatnonzero(state["leaves"])
    names = ("rows/obs", "rows/action", "rows/reward", "rows/parameter_version", "leaves", "rows/flags")
    return [b"".join(np.ascontiguousarray(state[name][slot]).tobytes() for name in names) for slot in slots]


@pytest.mark.parametrize(("replay", "actors"), [(2, 3), (1, 1), (3, 4)])
def test_what_was_saved_is_what_the_next_attempt_has(killed, replay, actors):
    """The same multiset, priorities and counts; with the same shards also cursors and random numbers."""
    saved = checkpoint.newest(killed.run_dir)
    before, after = memories(killed, 2, 3, saved), memories(killed, replay, actors, saved)
    held = [sorted(chain.from_iterable(contents(one) for one, _ in shards)) for shards in (before, after)]
    assert held[0] == held[1]
    for name in ("size", "entries", "inserted"):
        assert sum(getattr(one, name) for one, _ in after) == sum(getattr(one, name) for one, _ in before)
    total = sum(one.tree.total for one, _ in before)
    assert sum(one.tree.total for one, _ in after) == pytest.approx(total, rel=1e-12)
    assert sum(limiter.sampled for _, limiter in after) == 9 * saved.update
    if replay != 2:
        return
    for shard, (memory, limiter) in enumerate(after):
        stored = {}
        saved.restore(f"replay-{shard}", "memory", stored.update)
        loaded = memory.state()
        for name, value in stored.items():
            np.testing.assert_array_equal(loaded[name], value, err_msg=name)
        saved.restore(f"replay-{shard}", "limiter", stored.update)
        assert {name: value.tolist() for name, value in limiter.state().items()} == {
            name: stored[name].tolist() for name in limiter.state()
        }


def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(killed, whole, tmp_path):
    """Memory, priorities, cursors, random numbers and limiter are those that were saved: else the weights differ."""
    shutil.copytree(killed.run_dir, tmp_path / "runs" / "copy", symlinks=True)
    resumed = run(tmp_path, recipe="runs/copy", resume="must")
    assert resumed.weights() == whole.weights()
    check_ratio(replay_rows(resumed))
    for name in ("inserted", "sampled", "priority_total", "size"):
        np.testing.assert_array_equal(replay_rows(resumed)[name], replay_rows(whole)[name])


def test_resumed_with_other_ranks_and_out_of_step(killed, tmp_path):
    """One shard and one learner go on with what two had; updates keep to what is inserted, all attempts together."""
    shutil.copytree(killed.run_dir, tmp_path / "runs" / "copy", symlinks=True)
    settings = ("ranks.actors=1", "ranks.replay=1", "ranks.learners=1", "deterministic=false")
    resumed = run(tmp_path, *settings, recipe="runs/copy", resume="must")
    assert resumed.code == 0, resumed.stderr
    assert resumed.table("updates")["update"].tolist() == list(range(1, resumed.describe()["updates"] + 1))
    own = resumed.table("replay")
    own = own[own["attempt"] == 2]
    assert (own["sampled"] == 9 * own["update"]).all()
    allowed = 1.5 * (own["inserted"] - 100)
    assert np.abs(allowed - own["sampled"]).max() <= 1.5 * 8 * 7 + 2
    assert b"stream_derived" in resumed.table("events")["kind"]
