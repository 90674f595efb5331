"""Decoupled PPO (Hilton et al. 2022; bounded by a cap as in Fu et al. 2025): PPO on data that are some updates old."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from hpcrl.algorithms.ppo import METRICS, PPO, Center, Numbers
from hpcrl.config import AlgorithmConfig, DecoupledPPOConfig
from hpcrl.functional.losses import capped_weight
from hpcrl.models.recurrent import Memory


class DecoupledPPO(PPO):
    """The trust interval lies around the policy before the update; the policy that acted only weights the env_steps.

    Where the two are the same, it is PPO.
    """

    Config: ClassVar[type[AlgorithmConfig]] = DecoupledPPOConfig
    config: DecoupledPPOConfig
    metric_names = (*METRICS, "rho_clip_fraction")

    def center(self, obs: Tensor, action: Tensor, behavior_log_prob: Tensor, memory: Memory | None) -> Center:
        """As PPO.center: around the policy as it is now, with its capped importance weights."""
        proximal_log_prob = self.log_probs(obs, action, memory)
        weight = capped_weight(proximal_log_prob - behavior_log_prob, self.config.behavior_weight_cap)
        return Center(proximal_log_prob, weight, torch.zeros_like(weight))

    def more_metrics(self, numbers: Numbers) -> tuple[Tensor, ...]:
        """Where the weight hit its cap."""
        log_weight = numbers.proximal_log_prob - numbers.behavior_log_prob
        cap = self.config.behavior_weight_cap
        return ((log_weight > math.log(cap)).to(torch.float32) if cap else torch.zeros_like(log_weight),)
