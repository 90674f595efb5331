"""Environments that refuse what they have not allowed, or what was never scaled to their bounds."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Buttons(gymnasium.Env):
    """Two buttons of 3 and 2 positions, none of which may be pressed twice in a row; the first counts as reward.

    Observes a Dict of a Tuple and the mask, which allows nothing after the last of 6 env_steps,
    or too early.
    """

    action_space = spaces.MultiDiscrete([3, 2], start=[0, 5])
    observation_space = spaces.Dict(
        {
            "see": spaces.Tuple([spaces.Discrete(7), spaces.Box(-1, 1, (2,))]),
            "action_mask": spaces.MultiBinary(5),
        }
    )

    def __init__(self, stuck_at=6):
        self.stuck_at = stuck_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken, self.mask = 0, np.ones(5, np.int8)
        return self.observe(), {}

    def step(self, action):
        pressed = [action[0], action[1] - 5 + 3]
        assert self.mask[pressed].all(), f"{action} is not allowed by {self.mask}"
        self.taken += 1
        self.mask = np.full(5, self.taken < self.stuck_at, np.int8)
        self.mask[pressed] = 0
        return self.observe(), float(action[0]), self.taken == 6, False, {}

    def observe(self):
        return {
            "see": (self.taken, self.np_random.uniform(-1, 1, 2).astype(np.float32)),
            "action_mask": self.mask,
        }


class Valve(gymnasium.Env):
    """Opened by 2 to 6; a number outside, clipped, would be a bound itself, which a squashed one is not."""

    action_space = spaces.Box(2, 6, (1,))
    observation_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert 2 < action[0] < 6, f"{action} is a bound"
        self.taken += 1
        return np.zeros(1, np.float32), float(action[0]), False, self.taken == 6, {}
