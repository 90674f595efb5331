"""Environments that draw themselves without any library, which tests name as `tests.unit.showing.drawn_envs:...`."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Drawn(gymnasium.Env):
    """Ends after `ends` steps, each of which pays 1; the picture's column `step` is red."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 100}  # noqa: RUF012 - as gymnasium has it
    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, ends=5, render_mode=None, picture=True):
        self.render_mode, self._ends, self._picture, self._step = render_mode, ends, picture, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._step += 1
        return np.zeros(2, np.float32), 1.0, self._step == self._ends, False, {}

    def render(self):
        frame = np.zeros((8, 16, 3), np.uint8)
        frame[:, self._step] = 255, 0, 0
        return frame if self._picture else None


def make(ends=5, render_mode=None, picture=True):
    return Drawn(ends, render_mode, picture)


def make_undrawn(ends=5):
    return Drawn(ends)
