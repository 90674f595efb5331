"""Environments that get stuck, on the rank that the test's environment variable names, or take long to make."""

import os
import time
from pathlib import Path

import gymnasium
import numpy as np

from hpcrl.envs.toy import Counting
from hpcrl.envs.toy_vector import ToyVectorEnv

RANK = "HPCRL_TEST_STUCK_RANK"


def never_returns(how):
    while True:
        if how == "sleep":
            time.sleep(3600)


class StuckEnv(ToyVectorEnv):
    """The counting environment, for 200 env_steps."""

    def __init__(self, num_envs, seeds, how):
        super().__init__(Counting(range(num_envs), seeds), num_envs)
        self._how, self._steps_left = how, 200

    def recv(self):
        self._steps_left -= 1
        if self._steps_left < 0 and os.environ.get(RANK) == os.environ.get("PMI_RANK", "0"):
            never_returns(self._how)
        return super().recv()


def make(num_envs, seeds, how):
    return StuckEnv(num_envs, seeds, how)


def make_slowly(num_envs, seeds, seconds):
    time.sleep(seconds if num_envs > 1 else 0)
    return ToyVectorEnv(Counting(range(num_envs), seeds), num_envs)


def never_made(num_envs, seeds, how):
    """`how`: "alone": where only its spaces are asked for, which the other ranks wait for; else for the run."""
    if (num_envs == 1) == (how == "alone"):
        never_returns("loop")
    return ToyVectorEnv(Counting(range(num_envs), seeds), num_envs)


class StuckProcessEnv(gymnasium.Env):
    """For an engine with a process per environment: there the first step never returns."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        Path(f"stuck-{os.getpid()}").touch()
        never_returns("loop")
