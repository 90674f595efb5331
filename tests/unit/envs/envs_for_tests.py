"""Gymnasium environments and factories that tests name as `envs_for_tests:...`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hpcrl.config import EnvConfig
from hpcrl.envs import make_vector_env
from hpcrl.envs.conventions import CountingGymEnv


class SpacesEnv(gymnasium.Env):
    """Any spaces; remembers the action it was given and gives it back as info and observation samples."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.received: list[Any] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample(), {}

    def step(self, action):
        self.received.append(np.array(action))
        return self.observation_space.sample(), 1.0, len(self.received) % 9 == 0, False, {}


class DyingEnv(CountingGymEnv):
    """Its process exits at the third step."""

    def step(self, action):
        if self.steps_taken == 2:
            import os

            os._exit(9)
        return super().step(action)


def make_with_box_actions() -> gymnasium.Env:
    return SpacesEnv(spaces.Box(0, 1, (3,)), spaces.Box(-1, 1, (2,)))


def make_tuple() -> gymnasium.Env:
    return SpacesEnv(spaces.Tuple([spaces.Discrete(2)]), spaces.Discrete(2))


def make_vector(num_envs: int, seeds: list[int], tagged: bool = False) -> Any:
    """A VectorEnv of one's own: the factory itself is given the seeds."""
    config = EnvConfig(id="counting", engine="toy", kwargs={"tagged": tagged})
    env = make_vector_env(config, range(num_envs), 0)
    env.seeds = seeds
    return env


def make_gymnasium_vector(
    num_envs: int, seeds: list[int], mode: str = "SameStep"
) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv(
        [lambda index=index: CountingGymEnv(index) for index in range(num_envs)],
        autoreset_mode=gymnasium.vector.AutoresetMode(mode),
    )


def make_nonsense(num_envs: int, seeds: list[int]) -> str:
    return "no environment"


def make_nothing() -> str:
    return "no environment"
