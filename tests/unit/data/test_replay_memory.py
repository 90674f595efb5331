"""Transitions of the replay memory against a slow reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.data.replay_support import (
    STATE,
    Envs,
    everything,
    gathered,
    make_memory,
    sequences,
    transition,
)


def expected(envs, memory, n, gamma=0.9):
    """Every transition that must be there, by its env_steps."""
    live = memory.rings.place.live
    found = {}
    for env in memory.env_columns:
        column = envs.columns[env]
        # a gap is one entry of the list and a block of the ring
        width = [memory.rings.place.block if step.get("gap") else 1 for step in column.steps]
        ends = np.cumsum(width)
        for index in range(len(column.steps)):
            if ends[-1] - ends[index] < live and (one := transition(column, index, n, gamma)) is not None:
                found[one["obs"].tobytes(), env] = one
    return found


def check_all(memory, envs, n):
    want = expected(envs, memory, n)
    got = gathered(memory, everything(memory), envs)
    assert memory.entries == len(want)
    assert len(got["action"]) == len(want)
    by_obs = {obs: one for (obs, _), one in want.items()}
    ones = [by_obs.pop(obs.tobytes()) for obs in got["obs"]]
    assert not by_obs
    assert got["valid"].all()
    for name in ("obs", "next_obs", "action", "parameter_version"):
        assert (got[name] == np.array([one[name] for one in ones])).all(), name
    for name in ("reward", "discount"):
        np.testing.assert_allclose(got[name], [one[name] for one in ones], 1e-6, 1e-6, err_msg=name)


@pytest.mark.parametrize("n", [1, 3, 6])
def test_every_transition_is_there_and_exact(n):
    envs = Envs(range(2, 5))
    memory = make_memory(envs, capacity=3 * 17, n=n)
    for version in range(20):
        memory.insert(envs.trajectory(version=version))
        if version % 4 == 3:
            check_all(memory, envs, n)
    assert memory.inserted == sum(step["valid"] for c in envs.columns.values() for step in c.steps)


@pytest.mark.parametrize("first", ["copies", "zeros", "odd", "any"])
@pytest.mark.parametrize("frames", [2, 4])
def test_stacks_of_frames_come_back_exactly(frames, first):
    envs = Envs(range(2), frames=frames, first=first, shape=(2, 2), dtype="uint8", seed=frames)
    memory = make_memory(envs, capacity=2 * 16, n=2, config={"frame_stack": frames})
    for version in range(30):
        if version % 7 == 5:
            envs.lose(1, 3)
        memory.insert(envs.trajectory(version=version))
        if version % 5 != 1:
            continue
        check_all(memory, envs, 2)
    whole = make_memory(envs, capacity=2 * 16, n=2)
    assert memory.rings.rows["frames"].nbytes <= whole.rings.rows["obs"].nbytes * 1.5 / frames


def test_the_table_of_odd_stacks_does_not_grow():
    envs = Envs(range(2), frames=3, first="odd", shape=(2,), end_share=0.4)
    memory = make_memory(envs, capacity=2 * 13, config={"frame_stack": 3})
    for _ in range(200):
        memory.insert(envs.trajectory())
    assert memory.nbytes - memory.rings.rows["frames"].nbytes < 4096


@pytest.mark.parametrize("after_end", [False, True])
def test_where_env_steps_are_lost_the_episode_is_cut(after_end):
    envs = Envs(range(3), end_share=0.3, seed=5)
    memory = make_memory(envs, capacity=3 * 40, n=3)
    memory.insert(envs.trajectory())
    for _ in range(12):
        if after_end:
            while not envs.columns[2].steps[-1]["valid"] or not envs.columns[2].steps[-1]["terminated"]:
                memory.insert(envs.trajectory())
        envs.lose(2, 2)
        memory.insert(envs.trajectory())
        check_all(memory, envs, 3)


def sequence_check(memory, envs, length, cross):
    sample = everything(memory)
    got = gathered(memory, sample, envs, (STATE,))
    unroll, place = envs.spec.unroll_length, memory.rings.place
    want = {
        (column, start): sequence
        for column, env in enumerate(memory.env_columns)
        for start, sequence in sequences(envs.columns[env], unroll, length, place.live, cross).items()
    }
    assert memory.entries == len(sample.slots) == len(want)
    rows = [
        want[slot // place.rows, generation]
        for slot, generation in zip(sample.slots, sample.generations, strict=True)
    ]
    steps = list(zip(*rows, strict=True))
    assert (got["valid"] == [[row["counts"] for row in step] for step in steps]).all()
    there = np.array([["gap" not in row for row in step] for step in steps])
    for name in ("obs", "action", "reward", "parameter_version"):
        all_of = [np.stack([row[name] for row in step if "gap" not in row]) for step in steps]
        for step, (mask, values) in enumerate(zip(there, all_of, strict=True)):
            assert (got[name][step][mask] == values.astype(got[name].dtype)).all(), name
    for name in ("terminated", "truncated"):
        ends = [[bool(row.get(name)) and not row["cut"] for row in step] for step in steps]
        assert (got[name] == ends).all(), name
    after = np.stack([row["after"] for row in steps[-1] if "gap" not in row])
    assert (got["obs"][length][there[-1]] == after).all()
    states = [(index, row["initial_state"]) for index, row in enumerate(steps[0]) if row["start"]]
    assert (got["initial_state"][0, [index for index, _ in states]] == [state for _, state in states]).all()


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("frames", [0, 3])
def test_sequences_cross_neither_the_cursor_nor_an_episode(cross, frames):
    envs = Envs(range(2), frames=frames, first="any", end_share=0.15, extra=(STATE,), seed=2)
    memory = make_memory(
        envs, capacity=2 * 29, length=12, config={"frame_stack": frames}, cross_episodes=cross
    )
    for version in range(25):
        if version % 8 == 5:
            envs.lose(0, 2)
        memory.insert(envs.trajectory(version=version))
        if version % 3 == 0 and version > 3:
            sequence_check(memory, envs, 12, cross)


def test_every_env_step_of_short_episodes_is_in_a_sequence():
    envs = Envs(range(1), end_share=0.5, extra=(STATE,), seed=3)
    memory = make_memory(envs, capacity=1000, length=8)
    for _ in range(30):
        memory.insert(envs.trajectory())
    got = gathered(memory, everything(memory), envs, (STATE,))
    seen = set(got["obs"][:-1][got["valid"]][:, 0].tolist())
    steps = envs.columns[0].steps[: 4 * 30 - 8]
    assert {float(step["obs"][0]) for step in steps if step["valid"]} <= seen
