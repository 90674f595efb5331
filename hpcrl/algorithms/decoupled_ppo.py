"""Decoupled PPO (Hilton et al. 2022; bounded by a cap as in Fu et al. 2025): PPO on data that are some updates old."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hpcrl.algorithms.ppo import PPO
from hpcrl.config import AlgorithmConfig, DecoupledPPOConfig
from hpcrl.functional.losses import capped_weight
from hpcrl.models.recurrent import Memory


class DecoupledPPO(PPO):
    """The trust interval lies around the policy before the update; the policy that acted only weights the env_steps.

    Where the two are the same, it is PPO.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DecoupledPPOConfig
    config: DecoupledPPOConfig

    def center(
        self, obs: Tensor, action: Tensor, behavior_log_prob: Tensor, memory: Memory | None
    ) -> tuple[Tensor, Tensor]:
        """As PPO.center: the policy as it is now, and its capped importance weights."""
        proximal_log_prob = torch.empty_like(behavior_log_prob)
        with torch.no_grad():
            for part, memory_of_part in self.parts(len(obs), memory):
                proximal_log_prob[part] = self.evaluate(obs[part], action[part], memory_of_part)[0]
        weight = capped_weight(proximal_log_prob - behavior_log_prob, self.config.behavior_weight_cap)
        return proximal_log_prob, weight
