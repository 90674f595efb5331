"""DQN (Mnih et al. 2015): double, dueling, n steps ahead, from uniform or prioritized experience."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hpcrl.algorithms.action_value import ActionValueAlgorithm
from hpcrl.algorithms.base import Vector
from hpcrl.config import AlgorithmConfig, DQNConfig


class DQN(ActionValueAlgorithm):
    """Explores less and less."""

    Config: ClassVar[type[AlgorithmConfig]] = DQNConfig
    config: DQNConfig

    def exploration(self, envs: npt.NDArray[np.int64], num_envs: int, env_steps: int) -> Vector | None:
        """Probability of a random action: from 1 down to epsilon_end, by the env_steps of the whole run."""
        share = min(1.0, env_steps / self.config.epsilon_env_steps)
        return np.full(len(envs), 1 + share * (self.config.epsilon_end - 1), np.float32)
