"""Which shard fills and which learner trains a position of a batch."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.comm.ranks import share
from hpcrl.roles.arenas import part_positions, shard_positions
from tests.unit.comm.test_ranks import pipeline


@st.composite
def batches(draw):
    replay = draw(st.integers(1, 5))
    batch = draw(st.none() | st.integers(replay, 20))
    actors = draw(st.integers(replay, 9))
    return pipeline(actors, replay, draw(st.integers(1, 8)), batch_trajectories=batch)


@given(batches())
def test_every_position_of_a_batch_has_one_shard_and_one_learner(config):
    shards = [shard_positions(config, shard) for shard in range(config.ranks.replay)]
    assert all(shards)
    assert sorted(position for one in shards for position in one) == list(range(config.batch_trajectories))
    parts = {
        (shard, learner): part_positions(config, shard, learner)
        for shard in range(config.ranks.replay)
        for learner in range(config.ranks.learners)
    }
    assert sorted(chain.from_iterable(parts.values())) == list(range(config.batch_trajectories))
    for (shard, learner), part in parts.items():
        assert set(part) <= set(shards[shard])
        assert set(part) <= set(share(config.batch_trajectories, config.ranks.learners, learner))
