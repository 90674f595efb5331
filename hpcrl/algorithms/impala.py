"""IMPALA: asynchronous actor-critic corrected by V-trace (Espeholt et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm, Metrics, columns, rows
from hpcrl.algorithms.base import Batch, Reducer, UpdateResult
from hpcrl.algorithms.gradient import last_backward, open_gradient, reduce_gradient
from hpcrl.config import AlgorithmConfig, ImpalaConfig
from hpcrl.functional.losses import approx_kl, policy_gradient_loss, value_loss
from hpcrl.functional.returns import vtrace

METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "log_rho_mean", "rho_clip_fraction")


class Impala(ActorCriticAlgorithm):
    """One gradient step per update over the whole batch; losses are means over all valid env_steps."""

    Config: ClassVar[type[AlgorithmConfig]] = ImpalaConfig
    config: ImpalaConfig

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """One V-trace gradient step. Collective over the learners: two calls of the reducer."""
        metrics = Metrics(METRICS, self.parameters.vector.device)
        open_gradient(self.parameters, reducer)
        loss_sum = 0.0
        unroll_length, num_columns = batch.fields["reward"].shape
        # Columns do not touch each other, so large ones may go through the network one part after the other.
        stride = max(1, self.chunk_rows // (unroll_length + 1))
        for start in range(0, num_columns, stride):
            loss = self._loss(columns(batch, start, start + stride), metrics)
            completes = start + stride >= num_columns
            with last_backward(self.parameters, reducer) if completes else nullcontext():
                loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item()
        samples = int(batch.fields["valid"].sum())
        gradient = reduce_gradient(reducer, samples, loss_sum, self.config.max_grad_norm)
        learning_rate = self.learning_rate(progress)
        applied = gradient.finite or not batch.check_finite
        if applied and gradient.samples:
            self.optimizer.step(learning_rate, gradient.vector, gradient.scale)
        metrics.grad_norms.append(gradient.norm)
        means = metrics.reduce(reducer)
        return UpdateResult(metrics={**means, "learning_rate": learning_rate}, applied=applied)

    def _loss(self, fields: Mapping[str, Tensor], metrics: Metrics) -> Tensor:
        """Sum of the loss over the valid env_steps of some columns; adds to `metrics`."""
        config = self.config
        valid = fields["valid"]
        shape, count = valid.shape, valid.numel()
        log_prob, entropy, value = self.evaluate(rows(fields["obs"]), rows(fields["action"]))
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
        policy_losses = policy_gradient_loss(log_prob, rows(advantages))
        value_losses = value_loss(value, target)
        clipped = (log_rho.exp() > config.rho_bar).to(torch.float32)
        metrics.add(mask, policy_losses, value_losses, entropy, approx_kl(log_rho), log_rho, clipped)
        metrics.add_values(mask, value.detach(), target)
        losses = (
            policy_losses + config.value_coefficient * value_losses - config.entropy_coefficient * entropy
        )
        return torch.dot(mask, losses)
