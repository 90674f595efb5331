"""A2C: advantage actor-critic in step (Mnih et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from hpcrl.algorithms.actor_critic import OneStepAlgorithm
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.one_network import rows
from hpcrl.config import A2CConfig, AlgorithmConfig, PlainGradientConfig
from hpcrl.functional.losses import approx_kl, policy_gradient_loss, value_loss


class A2C(OneStepAlgorithm):
    """Plain policy gradients with the n-step or lambda-return.

    What the age of the data does to the gradient is not corrected: see lag.max_lag.
    """

    Config: ClassVar[type[AlgorithmConfig]] = A2CConfig
    config: PlainGradientConfig
    metric_names = ("policy_loss", "value_loss", "entropy", "approx_kl", "log_rho_mean")

    def loss(self, fields: Mapping[str, Tensor], metrics: Metrics) -> Tensor:
        """As OneStepAlgorithm.loss."""
        config = self.config
        valid = fields["valid"]
        shape, count = valid.shape, valid.numel()
        log_prob, entropy, value = self.evaluate(
            rows(fields["obs"]), rows(fields["action"]), self.memory(fields)
        )
        values = value.detach().view(shape[0] + 1, shape[1])
        advantages, targets = self.advantages(fields, values, config.gae_lambda)
        value, target = value[:count], rows(targets)
        mask = rows(valid).to(torch.float32)
        policy_losses = policy_gradient_loss(log_prob.masked_fill(~rows(valid), 0.0), rows(advantages))
        value_losses = value_loss(value, target)
        log_rho = log_prob.detach() - rows(fields["behavior_log_prob"])
        log_rho = log_rho.masked_fill(~rows(valid), 0.0)
        metrics.add(mask, policy_losses, value_losses, entropy, approx_kl(log_rho), log_rho)
        metrics.add_values(mask, value.detach(), target)
        losses = (
            0 * log_rho  # which must be finite, though only the metrics use it: else the data are damaged
            + policy_losses
            + config.value_coefficient * value_losses
            - config.entropy_coefficient * entropy
        )
        return torch.dot(mask, losses)
