"""Ape-X DQN (Horgan et al. 2018): many actors, each exploring in its own way, that say what is worth learning from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.action_value import ActionValueAlgorithm
from hpcrl.algorithms.base import Vector
from hpcrl.algorithms.one_network import rows
from hpcrl.config import AlgorithmConfig, ApexConfig, LadderConfig
from hpcrl.functional.q_learning import epsilon_ladder, n_step_returns, rescale, rescale_inverse


class Apex(ActionValueAlgorithm):
    """The learner is that of DQN."""

    Config: ClassVar[type[AlgorithmConfig]] = ApexConfig
    config: LadderConfig

    def exploration(self, envs: npt.NDArray[np.int64], num_envs: int, env_steps: int) -> Vector | None:
        """Probability of a random action, for each environment of the run another, which stays."""
        return epsilon_ladder(envs, num_envs, self.config.epsilon_base, self.config.epsilon_exponent)

    def first_priorities(self, fields: Mapping[str, npt.NDArray[Any]]) -> Vector:
        """As Algorithm.first_priorities: n-step double errors, with the parameters that act as both networks.

        0 where not valid.
        """
        trajectory = {name: self.here(values) for name, values in fields.items()}
        with torch.inference_mode():
            trajectory["reward"] = self.training_reward(trajectory["reward"])
            values = self.trajectory_values(trajectory)
            target = self.sequence_targets(trajectory, values, values)
            value = values[:-1].gather(-1, trajectory["action"].unsqueeze(-1)).squeeze(-1)
            errors = (target - value).abs().masked_fill(~trajectory["valid"], 0.0)
        return np.asarray(self.host(errors), np.float32)

    def trajectory_values(self, fields: Mapping[str, Tensor]) -> Tensor:
        """Q [T+1, B, actions] of the observations [T+1, B, ...] of a trajectory."""
        obs = fields["obs"]
        values: Tensor = self.network(rows(obs))
        return values.view(*obs.shape[:2], -1)

    def sequence_targets(self, fields: Mapping[str, Tensor], values: Tensor, learned: Tensor) -> Tensor:
        """n-step targets [T, B] of a sequence's env_steps, with rewards as they are trained on.

        `values` and `learned` [T+1, B, actions] are those of `next_value`.
        Rescaled where values are: h(n-step return with h^-1 of the values), Kapturowski et al. 2019, section 2.3.
        """
        rescaling = self.config.rescaling
        next_value = self.next_value(values[1:], learned[1:])
        returns = n_step_returns(
            fields["reward"].masked_fill(~fields["valid"], 0.0),
            next_value if rescaling is None else rescale_inverse(next_value, rescaling),
            fields["terminated"],
            fields["truncated"],
            gamma=self.config.gamma,
            steps=self.config.n_step,
        )
        return returns if rescaling is None else rescale(returns, rescaling)
