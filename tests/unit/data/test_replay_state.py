"""A replay memory that goes on from a checkpoint, with as many shards as before or with others."""

from __future__ import annotations

import numpy as np
import pytest

from hpcrl.data.specs import PRIORITY
from tests.unit.data.replay_support import STATE, Envs, everything, gathered, make_memory

PRIORITIZED = {"sampling": "prioritized", "alpha": 0.7}


def saved(memory):
    """As it comes back from a file."""
    return {name: array.copy() for name, array in memory.state().items()}


def work(memory, envs, trajectories, seed=0, names=None):
    """Insert, sample and update in turn; what was drawn."""
    rng = np.random.default_rng(seed)
    drawn = []
    for version in range(trajectories):
        memory.insert(envs.trajectory(names, version))
        if memory.entries:
            sample = memory.sample(8, 0.5)
            drawn.append((sample.slots, sample.generations, sample.weights))
            memory.update_priorities(sample, rng.uniform(0, 3, 8).astype(np.float32))
    return np.array(drawn)


@pytest.mark.parametrize(
    "kind", [{}, {"n": 3}, {"length": 8}, {"config": {"frame_stack": 3}}, {"length": 8, "frames": 3}]
)
@pytest.mark.parametrize("trajectories", [2, 30])
def test_a_resumed_memory_goes_on_with_the_same_draws(kind, trajectories):
    frames = kind.get("frames", 0) or kind.get("config", {}).get("frame_stack", 0)
    options = {"capacity": 2 * 21, "n": kind.get("n", 1), "length": kind.get("length", 0)}
    options["config"] = PRIORITIZED | {"frame_stack": frames}

    def envs():
        return Envs(range(2), frames=frames, first="any", extra=(STATE, PRIORITY), seed=4)

    one, two = envs(), envs()
    whole = make_memory(one, **options)
    work(whole, one, trajectories)
    rest = work(whole, one, 9, seed=1)

    cut = make_memory(two, **options)
    work(cut, two, trajectories)
    resumed = make_memory(two, seed=99, **options)
    resumed.load([saved(cut)])
    assert (resumed.size, resumed.entries, resumed.inserted) == (cut.size, cut.entries, cut.inserted)
    assert resumed.tree.total == cut.tree.total
    assert (work(resumed, two, 9, seed=1) == rest).all()
    state, other = whole.state(), resumed.state()
    assert state.keys() == other.keys()
    for name in state:
        if not name.startswith(("rows/", "odd", "last_origin")):  # rows of nothing, places of odd stacks
            np.testing.assert_array_equal(state[name], other[name], err_msg=name)
    first, second = (gathered(memory, everything(memory), two, (STATE,)) for memory in (whole, resumed))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def multiset(memories, envs):
    rows = []
    for memory in memories:
        sample = everything(memory)
        got = gathered(memory, sample, envs)
        priorities = memory.tree.leaves[sample.slots]
        rows += [
            (*(got[name][index].tobytes() for name in sorted(got)), priorities[index])
            for index in range(len(priorities))
        ]
    return sorted(rows)


@pytest.mark.parametrize("after", [1, 3, 6])
@pytest.mark.parametrize("frames", [0, 3])
def test_other_shards_hold_the_same_with_the_same_priorities(after, frames):
    envs = Envs(range(6), frames=frames, first="any", wide=3, seed=1)
    config = PRIORITIZED | {"frame_stack": frames}

    def shards(count):
        width = 6 // count
        return [
            make_memory(
                envs,
                capacity=width * 17,
                columns=range(index * width, (index + 1) * width),
                config=config,
                n=2,
                seed=index,
            )
            for index in range(count)
        ]

    before = shards(2)
    for index, memory in enumerate(before):
        work(memory, envs, 9 + index, names=range(3 * index, 3 * index + 3))
    parts = [saved(memory) for memory in before]
    resumed = shards(after)
    for memory in resumed:
        memory.load(parts)
    assert multiset(resumed, envs) == multiset(before, envs)
    for name in ("inserted", "size", "entries", "stale_updates", "refused_priorities"):
        assert sum(getattr(one, name) for one in resumed) == sum(getattr(one, name) for one in before), name
    total = sum(memory.tree.total for memory in before)
    assert sum(memory.tree.total for memory in resumed) == pytest.approx(total, rel=1e-14)


def test_the_first_insert_after_a_resume_goes_on_where_nothing_was_lost_and_else_not():
    for lost in (0, 2):
        envs = Envs(range(1), end_share=0, seed=1)
        memory = make_memory(envs, capacity=40, n=3)
        work(memory, envs, 3)
        resumed = make_memory(envs, capacity=40, n=3)
        resumed.load([saved(memory)])
        if lost:
            envs.lose(0, lost)
        resumed.insert(envs.trajectory())
        got = gathered(resumed, everything(resumed), envs)
        newest_before = np.flatnonzero(got["obs"][:, 0] == envs.columns[0].steps[11]["obs"][0])
        assert len(newest_before) == 1
        steps_ahead = 1 if lost else 3
        np.testing.assert_allclose(got["discount"][newest_before], 0.9**steps_ahead)


def test_a_larger_capacity_takes_no_stack_whose_frames_were_overwritten():
    envs = Envs(range(2), frames=4, seed=3)
    memory = make_memory(envs, capacity=2 * 21, config={"frame_stack": 4})
    work(memory, envs, 15)
    larger = make_memory(envs, capacity=2 * 40, config={"frame_stack": 4})
    larger.load([saved(memory)])
    assert multiset([larger], envs) == multiset([memory], envs)


def test_a_smaller_capacity_keeps_what_is_newest():
    envs = Envs(range(2), seed=3)
    memory = make_memory(envs, capacity=2 * 40)
    work(memory, envs, 15)
    smaller, larger = (make_memory(envs, capacity=2 * steps) for steps in (9, 50))
    for other, steps in ((smaller, 9), (larger, 40)):
        other.load([saved(memory)])
        got = gathered(other, everything(other), envs)
        want = {
            float(step["obs"][0])
            for column in envs.columns.values()
            for step in column.steps[-steps:]
            if step["valid"]
        }
        assert set(got["obs"][:, 0].tolist()) == want


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.35, lambda p: p**0.5), (0.7, lambda p: p), (0.0, np.ones_like)]
)
def test_priorities_follow_another_alpha(alpha, expected):
    envs = Envs(range(2))
    memory = make_memory(envs, capacity=100, config=PRIORITIZED)
    work(memory, envs, 9)
    resumed = make_memory(envs, capacity=100, config=PRIORITIZED | {"alpha": alpha})
    resumed.load([saved(memory)])
    inside = memory.tree.leaves > 0
    np.testing.assert_allclose(resumed.tree.leaves[inside], expected(memory.tree.leaves[inside]))


@pytest.mark.parametrize("n", [1, 5])
def test_n_may_change(n):
    envs = Envs(range(2), end_share=0.05, seed=7)
    memory = make_memory(envs, capacity=2 * 30, n=3)
    work(memory, envs, 9)
    resumed = make_memory(envs, capacity=2 * 30, n=n)
    resumed.load([saved(memory)])
    fresh = make_memory(envs, capacity=2 * 30, n=n)
    for one in (resumed, fresh):
        one.load([saved(memory)])
        one.insert(again := envs.trajectory()) if one is resumed else one.insert(again)
    assert (resumed.tree.leaves == fresh.tree.leaves).all()


def test_another_unroll_length_goes_on_with_transitions_and_is_refused_with_sequences():
    envs, other = Envs(range(2), unroll=4, seed=5), Envs(range(2), unroll=3, seed=5)
    memory = make_memory(envs, capacity=2 * 25)
    work(memory, envs, 10)
    resumed = make_memory(other, capacity=2 * 25)
    resumed.load([saved(memory)])
    assert multiset([resumed], envs) == multiset([memory], envs)
    other.columns = envs.columns
    before = resumed.inserted
    resumed.insert(other.trajectory())
    assert resumed.inserted > before
    sequences = make_memory(envs, capacity=2 * 25, length=12)
    with pytest.raises(ValueError, match=r"algorithm.unroll_length=3 was 4"):
        make_memory(other, capacity=2 * 25, length=12).load([sequences.state()])


def test_another_way_to_store_frames_is_refused():
    envs = Envs(range(2), frames=3)
    whole = make_memory(envs, capacity=60)
    with pytest.raises(ValueError, match=r"replay.frame_stack"):
        make_memory(envs, capacity=60, config={"frame_stack": 3}).load([whole.state()])
