"""A replay memory in which the lowest priority makes room, against a slow reference."""

from __future__ import annotations

import numpy as np
import pytest

from hpcrl.data.priorities import EPSILON
from hpcrl.data.replay_layout import predicted_bytes
from hpcrl.data.specs import PRIORITY
from tests.unit.data.replay_support import Envs, everything, gathered, make_memory, transition

RANKED = {"sampling": "prioritized", "alpha": 0.5, "eviction": "lowest_priority"}


def obs_of(got):
    return [obs.tobytes() for obs in got["obs"]]


@pytest.mark.parametrize("n", [1, 3])
def test_what_has_the_lowest_priority_makes_room(n):
    envs = Envs(range(3), extra=(PRIORITY,), seed=n)
    memory = make_memory(envs, capacity=40, n=n, config=RANKED)
    rng = np.random.default_rng(0)
    kept: dict[bytes, float] = {}
    known: dict[bytes, dict] = {}
    for version in range(25):
        memory.insert(envs.trajectory(version=version))
        new = {}
        for column in envs.columns.values():
            for index, step in enumerate(column.steps):
                one = transition(column, index, n, 0.9)
                if one is not None and one["obs"].tobytes() not in known:
                    new[one["obs"].tobytes()] = (step["priority"] + EPSILON) ** 0.5
                    known[one["obs"].tobytes()] = one
        for obs in sorted(kept, key=kept.__getitem__)[: max(len(kept) + len(new) - 40, 0)]:
            del kept[obs]
        kept |= new
        sample = everything(memory)
        got = gathered(memory, sample, envs)
        assert memory.entries == memory.size == len(kept)
        assert dict(zip(obs_of(got), memory.tree.leaves[sample.slots], strict=True)) == pytest.approx(kept)
        ones = [known[obs] for obs in obs_of(got)]
        for name in ("next_obs", "action", "parameter_version"):
            assert (got[name] == np.array([one[name] for one in ones])).all(), name
        for name in ("reward", "discount"):
            np.testing.assert_allclose(got[name], [one[name] for one in ones], 1e-6, 1e-6)
        assert got["valid"].all()
        drawn = memory.sample(10)
        td = rng.uniform(0, 5, 10).astype(np.float32)
        memory.update_priorities(drawn, td)
        obs = obs_of(gathered(memory, drawn, envs))
        kept |= {one: (p + EPSILON) ** 0.5 for one, p in zip(obs, td.tolist(), strict=True)}
    assert memory.inserted == sum(s["valid"] for c in envs.columns.values() for s in c.steps)


def test_a_late_priority_does_not_touch_what_has_replaced_its_transition():
    envs = Envs(range(2), extra=(PRIORITY,), end_share=0)
    memory = make_memory(envs, capacity=20, config=RANKED)
    for _ in range(3):
        memory.insert(envs.trajectory())
    sample = everything(memory)
    memory.insert(envs.trajectory())
    same = memory.kept["generation"][sample.slots] == sample.generations
    assert 0 < same.sum() < len(same)
    leaves = memory.tree.leaves.copy()
    memory.update_priorities(sample, np.full(len(same), 9, np.float32))
    assert set(np.flatnonzero(memory.tree.leaves != leaves)) == set(sample.slots[same])
    assert memory.stale_updates == (~same).sum()
    with pytest.raises(RuntimeError, match="replaced between"):
        gathered(memory, sample, envs)


def saved(memory):
    return {name: array.copy() for name, array in memory.state().items()}


def work(memory, envs, trajectories, names=None):
    drawn = []
    for version in range(trajectories):
        memory.insert(envs.trajectory(names, version))
        sample = memory.sample(8, 0.5)
        drawn.append((sample.slots, sample.generations, sample.weights))
        memory.update_priorities(sample, np.linspace(0, 3, 8).astype(np.float32))
    return np.array(drawn)


@pytest.mark.parametrize("trajectories", [2, 12])
def test_a_resumed_memory_goes_on_with_the_same_draws(trajectories):
    one, two = (Envs(range(2), extra=(PRIORITY,)) for _ in range(2))
    whole = make_memory(one, capacity=40, n=3, config=RANKED)
    work(whole, one, trajectories)
    rest = work(whole, one, 9)
    cut = make_memory(two, capacity=40, n=3, config=RANKED)
    work(cut, two, trajectories)
    resumed = make_memory(two, capacity=40, n=3, config=RANKED, seed=9)
    resumed.load([saved(cut)])
    assert resumed.tree.total == cut.tree.total
    assert (work(resumed, two, 9) == rest).all()
    assert resumed.inserted == whole.inserted


def multiset(memories, envs):
    rows = []
    for memory in memories:
        sample = everything(memory)
        got = gathered(memory, sample, envs)
        leaves = memory.tree.leaves[sample.slots]
        rows += [(*(got[name][i].tobytes() for name in sorted(got)), leaves[i]) for i in range(len(leaves))]
    return sorted(rows)


@pytest.mark.parametrize("after", [1, 3])
def test_other_shards_hold_the_same_with_the_same_priorities(after):
    envs = Envs(range(6), wide=3, extra=(PRIORITY,))

    def shards(count):
        names = [range(6 * index // count, 6 * (index + 1) // count) for index in range(count)]
        # one shard may get more of the old ones than its share: room for all of them
        return [make_memory(envs, capacity=100, columns=one, n=2, config=RANKED) for one in names]

    before = shards(2)
    for index, memory in enumerate(before):
        work(memory, envs, 8 - index, range(3 * index, 3 * index + 3))
    resumed = shards(after)
    for memory in resumed:
        memory.load([saved(one) for one in before])
    everyone = multiset(before, envs)
    if after == 1:  # there is room for those of the highest priorities only
        assert len(everyone) > 100
        highest = sorted(row[-1] for row in everyone)[-100:]
        assert sorted(row[-1] for row in multiset(resumed, envs)) == highest
    else:
        assert multiset(resumed, envs) == everyone
    assert sum(one.inserted for one in resumed) == sum(one.inserted for one in before)


def test_the_prediction_is_what_is_allocated():
    envs = Envs(range(4), shape=(50,), extra=(PRIORITY,))
    memory = make_memory(envs, capacity=4000, n=3, config=RANKED)
    assert predicted_bytes(memory.layout, memory.config) == pytest.approx(memory.nbytes, rel=0.001)


@pytest.mark.parametrize(
    "options", [{"length": 8}, {"config": RANKED | {"frame_stack": 3}}], ids=["sequences", "frames"]
)
def test_what_is_not_there_is_refused_by_name(options):
    envs = Envs(range(2), frames=3)
    with pytest.raises(ValueError, match=r"replay.eviction=lowest_priority .* use replay.eviction=fifo"):
        make_memory(envs, capacity=100, **({"config": RANKED} | options))


def test_the_memory_of_the_other_eviction_is_refused():
    envs = Envs(range(2))
    kinds = [make_memory(envs, capacity=100, config=config) for config in (RANKED, {})]
    for one, other in (kinds, kinds[::-1]):
        with pytest.raises(ValueError, match=r"replay.eviction"):
            one.load([other.state()])
