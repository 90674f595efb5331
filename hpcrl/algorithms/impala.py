"""IMPALA: asynchronous actor-critic corrected by V-trace (Espeholt et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from hpcrl.algorithms.actor_critic import OneStepAlgorithm
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.one_network import rows
from hpcrl.config import AlgorithmConfig, ImpalaConfig
from hpcrl.functional.losses import approx_kl, policy_gradient_loss, value_loss
from hpcrl.functional.returns import vtrace


class Impala(OneStepAlgorithm):
    """One gradient step per update over the whole batch; losses are means over all valid env_steps."""

    Config: ClassVar[type[AlgorithmConfig]] = ImpalaConfig
    config: ImpalaConfig
    metric_names = ("policy_loss", "value_loss", "entropy", "approx_kl", "log_rho_mean", "rho_clip_fraction")

    def loss(self, fields: Mapping[str, Tensor], metrics: Metrics) -> Tensor:
        """Sum of the loss over the valid env_steps of some columns; adds to `metrics`."""
        config = self.config
        valid = fields["valid"]
        shape, count = valid.shape, valid.numel()
        log_prob, entropy, value = self.evaluate(
            rows(fields["obs"]), rows(fields["action"]), self.memory(fields)
        )
        values = value.detach().view(shape[0] + 1, shape[1])
        log_rho = log_prob.detach().view(shape) - fields["behavior_log_prob"]
        log_rho = log_rho.masked_fill(~valid, 0.0)
        targets, advantages = vtrace(
            self.training_reward(fields),
            values[:-1],
            values[1:],
            fields["terminated"],
            fields["truncated"],
            log_rho=log_rho,
            gamma=config.gamma,
            lambda_=config.lambda_,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
        )
        value, target, log_rho = value[:count], rows(targets), rows(log_rho)
        mask = rows(valid).to(torch.float32)
        policy_losses = policy_gradient_loss(log_prob.masked_fill(~rows(valid), 0.0), rows(advantages))
        value_losses = value_loss(value, target)
        clipped = (log_rho.exp() > config.rho_bar).to(torch.float32)
        metrics.add(mask, policy_losses, value_losses, entropy, approx_kl(log_rho), log_rho, clipped)
        metrics.add_values(mask, value.detach(), target)
        losses = (
            policy_losses + config.value_coefficient * value_losses - config.entropy_coefficient * entropy
        )
        return torch.dot(mask, losses)
