"""Which part of every batch a shard fills, and how long one side waits for the other."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.comm.ranks import share
from hpcrl.config import ConfigError, RunConfig
from hpcrl.roles import memory_shard
from hpcrl.roles.arenas import part_positions, shard_envs, shard_positions
from hpcrl.roles.memory_shard import Wait
from hpcrl.roles.memory_state import make_limiter
from hpcrl.roles.session import Timers


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


def test_a_wait_counts_from_its_beginning_to_its_end(monkeypatch):
    clock = iter([1.0, 2.0, 5.0, 6.0, 8.0, 9.0])
    monkeypatch.setattr(memory_shard, "perf_counter", lambda: next(clock))
    timers = Timers()
    wait = Wait(timers, "limiter.insert_wait")
    for waits in (False, True, True, False, True, False):
        wait.look(waits)
    assert wait.seconds == 4 + 1
    assert timers.items() == [("limiter.insert_wait", 5.0, 2)]
