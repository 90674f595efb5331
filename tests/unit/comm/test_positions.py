"""Which shard fills and which learner trains a position of a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.comm.ranks import share
from hpcrl.roles.replay import learner_of_position, shard_positions
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
    learners = [learner_of_position(config, position) for position in range(config.batch_trajectories)]
    assert learners == sorted(learners)
    for learner in range(config.ranks.learners):
        assert learners.count(learner) == len(
            share(config.batch_trajectories, config.ranks.learners, learner)
        )


@pytest.mark.parametrize("position", [-1, 4])
def test_there_is_no_other_position(position):
    with pytest.raises(ValueError, match=f"position {position} is not in a batch of 4"):
        learner_of_position(pipeline(4), position)
