"""Which part of every batch a shard fills, and how long one side waits for the other."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.comm.ranks import Placement, share
from hpcrl.config import ConfigError, RunConfig
from hpcrl.roles import memory_shard
from hpcrl.roles.arenas import part_positions, shard_envs, shard_positions
from hpcrl.roles.memory_shard import MemoryShard, Wait
from hpcrl.roles.memory_state import make_limiter
from hpcrl.roles.timers import Timers


def config(actors, shards, learners, num_envs, batch_size, **sections):
    values = {
        "name": "x",
        "env": {"id": "counting", "engine": "toy", "num_envs": num_envs},
        "algorithm": {"name": "dqn", "batch_size": batch_size},
        "ranks": {"actors": actors, "replay": shards, "learners": learners},
    }
    return RunConfig.parse(values | sections)


@given(st.data())
def test_every_position_is_filled_once_and_in_proportion(data):
    """To the environments of a shard, on every learner, so that each env_step is as likely as any other."""
    actors = data.draw(st.integers(1, 5))
    replay, learners = data.draw(st.integers(1, min(actors, 3))), data.draw(st.integers(1, 3))
    num_envs = data.draw(st.integers(actors, 20))
    run = config(actors, replay, learners, num_envs, batch_size=data.draw(st.integers(num_envs, 60)))
    batch = run.algorithm.batch_size
    envs = [shard_envs(run, shard) for shard in range(replay)]
    assert sorted(chain.from_iterable(envs)) == list(range(num_envs))
    assert sorted(chain.from_iterable(shard_positions(run, shard) for shard in range(replay))) == list(
        range(batch)
    )
    for shard in range(replay):
        parts = [part_positions(run, shard, learner) for learner in range(learners)]
        assert list(chain.from_iterable(parts)) == shard_positions(run, shard)
        for learner, part in enumerate(parts):
            whole = len(share(batch, learners, learner))
            assert abs(len(part) - whole * len(envs[shard]) / num_envs) < replay


def test_the_limits_of_the_run_are_divided_by_environments():
    run = config(3, 2, 1, 7, 70, replay={"min_size": 700, "samples_per_insert": 2.0})
    first, second = (make_limiter(run, shard) for shard in range(2))
    first.insert(499)
    second.insert(199)
    assert not first.may_sample(1)
    assert not second.may_sample(1)
    first.insert(1)
    second.insert(1)
    assert first.may_sample(1)
    assert second.may_sample(1)


def test_limits_that_would_have_all_wait_for_ever_are_refused():
    run = config(1, 1, 1, 4, 1000, replay={"tolerance": 0.1})
    with pytest.raises(ConfigError, match=r"replay\.tolerance=0\.1"):
        make_limiter(run, 0)


def bare_shard(run, shard, **attributes):
    """Without streams."""
    made = MemoryShard.__new__(MemoryShard)
    made._session = SimpleNamespace(
        config=run, world=SimpleNamespace(attempt=1), record=lambda table, rows: None
    )
    made._placement = Placement(shard, "replay", shard)
    made._grants, made._trajectories = [], []
    made.served = 5
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(("shard", "share"), [(0, 5 / 7), (1, 2 / 7)])
def test_weights_are_those_of_the_shards_share_of_the_batch(shard, share):
    run = config(3, 2, 1, 7, 70, budget={"env_steps": 1000}, replay={"sampling": "prioritized", "beta": 0.5})
    asked = []

    def sample(count, beta, share):
        asked.append((count, beta, share))
        return SimpleNamespace(weights=np.ones(count))

    memory = SimpleNamespace(inserted=round(100 * share), sample=sample)
    count = len(shard_positions(run, shard))
    limiter = SimpleNamespace(sample=asked.append)
    made = bare_shard(run, shard, memory=memory, limiter=limiter, _count=count, _share=share, _owed={})
    made._record = lambda: None
    made._answer({})
    assert asked[0][0] == asked[1] == 70 * share
    assert asked[0][1] == pytest.approx(0.5 + 0.1 * 0.5, abs=0.01)
    assert asked[0][2] == pytest.approx(share)


def test_a_cut_waits_for_what_was_granted_and_for_priorities():
    written = []
    made = bare_shard(config(1, 1, 1, 4, 8), 0, _under_way={0: 0}, _owed={4: None}, cut_at=5)
    made._session.cuts = SimpleNamespace(write=lambda *arguments: written.append(arguments))
    made.components = dict
    made.cut(5)
    made._under_way.clear()
    made.cut(5)
    assert (written, made.cut_at) == ([], 5)
    made._owed.clear()
    made.cut(5)
    assert (len(written), made.cut_at) == (1, None)


def test_a_wait_counts_from_its_beginning_to_its_end(monkeypatch):
    clock = iter([1.0, 2.0, 5.0, 6.0, 8.0, 9.0])
    monkeypatch.setattr(memory_shard, "perf_counter", lambda: next(clock))
    timers = Timers()
    wait = Wait(timers, "limiter.insert_wait")
    for waits in (False, True, True, False, True, False):
        wait.look(waits)
    assert wait.seconds == 4 + 1
    counted = timers("limiter.insert_wait")
    assert (counted.seconds, counted.count) == (5.0, 2)
