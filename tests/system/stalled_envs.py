"""Environments whose ranks lose something that others wait for, as a broken transport would, or are slow."""

import os
import time

import numpy as np

from hpcrl.envs.toy import Counting
from hpcrl.envs.toy_vector import ToyVectorEnv


def _counting(num_envs, seeds):
    return ToyVectorEnv(Counting(range(num_envs), seeds), num_envs)


def loses_a_grant(num_envs, seeds):
    """From the 11th on this process's grants are lost."""
    from hpcrl.roles.actor import ActorStreams

    original, left = ActorStreams.next_grant, [10]

    def next_grant(streams):
        grant = original(streams)
        if grant is not None:
            left[0] -= 1
        return grant if left[0] >= 0 else None

    if num_envs > 1:  # not where only its spaces are asked for
        ActorStreams.next_grant = next_grant
    return _counting(num_envs, seeds)


def loses_a_sum(num_envs, seeds):
    """After some updates rank 1 never sees that a sum over the learners has come."""
    from hpcrl.roles.learning import Learning

    vote = Learning.vote

    def lost(learning):
        if learning.updates == 5:
            waiter = learning._session.world.waiter
            learning._reducer.sum_array = lambda array: waiter.until(lambda: False)
        return vote(learning)

    if os.environ.get("PMI_RANK") == "1":
        Learning.vote = lost
    return _counting(num_envs, seeds)


class Unending(Counting):
    """No episode ends, so that none is recorded."""

    def advance(self, actions, rows):
        outcome = super().advance(actions, rows)
        nowhere = np.zeros_like(outcome.terminated)
        return outcome._replace(terminated=nowhere, truncated=nowhere)


class SlowOnRank1(ToyVectorEnv):
    """There every env_step takes `seconds`."""

    def __init__(self, num_envs, seeds, seconds):
        super().__init__(Unending(range(num_envs), seeds), num_envs)
        self._seconds = seconds if os.environ.get("PMI_RANK") == "1" else 0.0

    def recv(self):
        time.sleep(self._seconds)
        return super().recv()


def slow_on_rank_1(num_envs, seeds, seconds):
    return SlowOnRank1(num_envs, seeds, seconds)
