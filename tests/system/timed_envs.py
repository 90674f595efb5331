"""Environments whose clock is not the same in every process: what depends on timing shows."""

import os
import time

import numpy as np

from hpcrl.envs.toy import Chain, Counting
from hpcrl.envs.toy_vector import ToyVectorEnv


class JitterEnv(ToyVectorEnv):
    """The chain environment; takes up to half a second for the first step and up to 4 ms for every other."""

    def __init__(self, num_envs, seeds):
        super().__init__(Chain(range(num_envs), seeds), num_envs)
        self._clock = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
        self._longest_s = 0.5

    def recv(self):
        time.sleep(self._clock.uniform(0, self._longest_s))
        self._longest_s = 0.004
        return super().recv()


def make(num_envs, seeds):
    return JitterEnv(num_envs, seeds)


class StragglerEnv(ToyVectorEnv):
    """The counting environment, which on the last of four ranks takes its time."""

    def __init__(self, num_envs, seeds, seconds):
        super().__init__(Counting(range(num_envs), seeds), num_envs)
        self._seconds = seconds

    def recv(self):
        if os.environ.get("PMI_RANK") == "3":
            time.sleep(self._seconds)
        return super().recv()


class UnevenEnv(StragglerEnv):
    """The counting environment, which takes longer the higher the rank."""

    def recv(self):
        time.sleep(self._seconds * int(os.environ.get("PMI_RANK", "0")))
        return ToyVectorEnv.recv(self)


def make_uneven(num_envs, seeds, seconds):
    return UnevenEnv(num_envs, seeds, seconds)


def make_straggler(num_envs, seeds, seconds):
    return StragglerEnv(num_envs, seeds, seconds)
