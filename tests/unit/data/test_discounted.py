"""Discounted returns: each episode's own, however it ended."""

import numpy as np

from hpcrl.data.discounted import DiscountedReturns


def test_the_sum_begins_again_after_an_end_and_skips_the_reset_step():
    """Rewards of 1 in episodes of three env_steps, each followed by a reset step, without discount."""
    running = DiscountedReturns(1, 1.0)
    rewards = [1, 1, 1, 0, 1, 1, 1, 0, 1]
    ends = [False, False, True, False, False, False, True, False, False]
    found = [running.step(np.float32([r]), np.array([end])) for r, end in zip(rewards, ends, strict=True)]
    assert np.ravel(found).tolist() == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert found[0].dtype == np.float32


def test_slots_are_apart_and_each_distance_discounts_once_more():
    running = DiscountedReturns(2, 0.5)
    for reward, end in (([8, 1], [False, True]), ([0, 4], [False, False])):
        found = running.step(np.float32(reward), np.array(end))
    assert found.tolist() == [4, 4]
    assert running.step(np.float32([1, 1]), np.array([True, True])).tolist() == [3, 3]
    assert running.carried.tolist() == [0, 0]
