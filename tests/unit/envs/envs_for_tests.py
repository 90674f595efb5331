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


class MaskedEnv(gymnasium.Env):
    """Two buttons of 3 and 2 positions; the mask allows all but what was pressed last, and nothing at an end.

    It ends after `ends` steps. A button that is not allowed raises. With `in_info` the mask is in the info.
    """

    def __init__(self, ends: int = 4, stuck_at: int | None = None, in_info: bool = False) -> None:
        self.action_space = spaces.MultiDiscrete([3, 2])
        plain = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])
        mask = spaces.Box(0, 1, (5,), np.int8)
        self.observation_space = plain if in_info else spaces.Dict({"action_mask": mask, "see": plain})
        self._plain, self._ends, self._stuck_at, self._in_info = plain, ends, stuck_at, in_info
        self._taken, self.mask = 0, np.ones(5, np.int8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._plain.seed(int(self.np_random.integers(1 << 30)))
        self._taken, self.mask = 0, np.ones(5, np.int8)
        return self._observe()

    def step(self, action):
        for index in (action[0], 3 + action[1]):
            if not self.mask[index]:
                raise ValueError(f"{action} is not allowed")
        self._taken += 1
        self.mask = np.ones(5, np.int8)
        self.mask[[action[0], 3 + action[1]]] = 0
        ended = self._taken == self._ends
        if ended or self._taken == self._stuck_at:
            self.mask[:] = 0
        obs, info = self._observe()
        return obs, float(action[0]), ended, False, info

    def _observe(self):
        see = self._plain.sample()
        if self._in_info:
            return see, {"action_mask": self.mask}
        return {"see": see, "action_mask": self.mask}, {}


def make_masked(**kwargs: Any) -> gymnasium.Env:
    return MaskedEnv(**kwargs)


def make_text() -> gymnasium.Env:
    return SpacesEnv(spaces.Tuple([spaces.Text(2)]), spaces.Discrete(2))


gymnasium.register("Text-v0", make_text)


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
