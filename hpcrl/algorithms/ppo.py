"""PPO (Schulman et al. 2017) with minibatches drawn over the batch of all learners."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm, whole_columns
from hpcrl.algorithms.base import Batch, Reducer, UpdateResult
from hpcrl.algorithms.gradient import GradientStep, ReducedGradient
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.one_network import rows
from hpcrl.config import AlgorithmConfig, PPOConfig, SurrogateConfig
from hpcrl.functional.losses import (
    approx_kl,
    clipped_surrogate_loss,
    clipped_surrogate_slope,
    clipped_value_loss,
    clipped_value_slope,
    outside_trust_interval,
    value_loss,
)
from hpcrl.functional.returns import Gae
from hpcrl.functional.statistics import global_moments
from hpcrl.models.recurrent import Memory

METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "log_rho_mean", "clip_fraction")
KL_MARGIN = 1.5
"""Epochs end when the KL estimate passes this many times target_kl."""


class Center(NamedTuple):
    """Where the trust interval lies, for [N] env_steps."""

    log_prob: Tensor
    """of the policy that it lies around"""
    weight: Tensor
    """of the policy loss"""
    log_rho: Tensor
    """log-probability under the policy that advantages are estimated for, minus that when it acted"""


class Numbers(NamedTuple):
    """What is known of N env_steps, float32 [N] each."""

    behavior_log_prob: Tensor
    proximal_log_prob: Tensor
    """of the policy that the trust interval lies around"""
    weight: Tensor
    """of the policy loss"""
    value: Tensor
    """that advantages were computed from: of the parameters before the update's first gradient step"""
    advantage: Tensor
    target: Tensor
    mask: Tensor
    """1.0 where valid, else 0.0"""


@dataclass(frozen=True, slots=True)
class Samples:
    """One learner's env_steps, time-major: row t * C + c."""

    obs: Tensor
    action: Tensor
    table: Tensor
    """float32 [N, 7], in memory column by column or row by row: `numbers`; one array, as it is taken from often"""
    memory: Memory | None
    """of a recurrent policy, for the C columns"""

    @property
    def numbers(self) -> Numbers:
        """The columns of the table."""
        return Numbers(*self.table.unbind(1))

    def take(self, index: Tensor) -> Samples:
        """Copy the rows `index`, int64 [N]; of a recurrent policy all rows of some columns, time-major."""
        obs, action, table = (values.index_select(0, index) for values in (self.obs, self.action, self.table))
        table = table.t().contiguous().t()  # what is computed from it reads whole columns
        if self.memory is None:
            return Samples(obs, action, table, None)
        num_columns = len(index) * len(self.memory.state) // max(1, len(self.obs))
        return Samples(obs, action, table, self.memory.columns(index[:num_columns]))

    def part(self, part: slice | Tensor, memory: Memory | None) -> Samples:
        """The rows `part`, for which `memory` is."""
        return Samples(self.obs[part], self.action[part], self.table[part], memory)


class PPO(ActorCriticAlgorithm):
    """`epochs` passes over the batch in `num_minibatches` gradient steps each."""

    Config: ClassVar[type[AlgorithmConfig]] = PPOConfig
    config: SurrogateConfig
    metric_names: ClassVar[tuple[str, ...]] = METRICS

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """All epochs over one batch; a gradient that is not finite takes back all of them.

        Collective over the learners: every learner calls the reducer equally often, whatever its share.
        Raises ValueError when the batch of all learners has fewer env_steps than num_minibatches.
        """
        before = self.state()
        metrics = Metrics(self.metric_names, self.parameters.vector.device)
        learning_rate = self.learning_rate(batch.update, progress)
        samples = self._samples(batch, reducer)
        whole = samples.numbers
        metrics.add_values(whole.mask, whole.value, whole.target)
        applied, alone = True, batch.fields["reward"].shape[1] == batch.total_columns
        for index in self._minibatches(batch):
            step = GradientStep(self.parameters, reducer, alone=alone, loss_scale=self.loss_scale.value)
            gradient = self._gradient(step, samples, index, metrics)
            if self.loss_scale.skips(gradient):
                continue
            if batch.check_finite and not gradient.finite:
                self.load_state(before)
                applied = False
                break
            if self._kl_too_large(gradient):
                break
            if gradient.samples:
                metrics.gradients.append(gradient)
                with self.timed("optimizer.step"):
                    self.optimizer.step(learning_rate, gradient.vector, gradient.scale)
        means = metrics.reduce(reducer)
        means |= {"learning_rate": learning_rate, **self.loss_scale.metrics}
        return UpdateResult(metrics=means, applied=applied)

    def _samples(self, batch: Batch, reducer: Reducer) -> Samples:
        """Advantages and targets from the values before the first gradient step, once per update."""
        fields = batch.fields
        memory = self.memory(fields)
        values = self._values(fields["obs"], memory)
        obs = rows(fields["obs"][:-1])
        names = ("action", "behavior_log_prob", "valid")
        action, behavior_log_prob, valid = (rows(fields[name]) for name in names)
        center = self.center(obs, action, behavior_log_prob, memory)
        advantages, targets = self.estimate(fields, values, center.log_rho.view(fields["valid"].shape))
        if self.config.normalize_advantages:
            moments = global_moments(advantages, fields["valid"], reducer.sum_)
            advantages = (advantages - moments.mean) / (math.sqrt(moments.variance) + 1e-8)
        numbers = Numbers(
            behavior_log_prob=behavior_log_prob,
            proximal_log_prob=center.log_prob,
            weight=center.weight.masked_fill(~valid, 0.0),
            value=rows(values[:-1]),
            advantage=rows(advantages),
            target=rows(targets),
            mask=valid.to(torch.float32),
        )
        return Samples(obs, action, torch.stack(numbers, 1), memory)

    def center(self, obs: Tensor, action: Tensor, behavior_log_prob: Tensor, memory: Memory | None) -> Center:
        """Where the trust interval lies. Called once per update, before its first gradient step.

        Here: around the policy that acted, which advantages are estimated for too, with weight 1.
        """
        return Center(
            behavior_log_prob, torch.ones_like(behavior_log_prob), torch.zeros_like(behavior_log_prob)
        )

    def estimate(self, fields: Mapping[str, Tensor], values: Tensor, log_rho: Tensor) -> Gae:
        """Advantages and value targets [T, C] under values [T+1, C]; log_rho [T, C] of `center`. Here: by GAE."""
        return self.advantages(fields, values, self.config.gae_lambda)

    def log_probs(self, obs: Tensor, action: Tensor, memory: Memory | None) -> Tensor:
        """Log-probabilities [N] of the policy as it is, without a gradient, a part at a time."""
        log_prob = torch.empty(len(obs), device=obs.device)
        with torch.no_grad():
            for part, memory_of_part in self.parts(len(obs), memory):
                log_prob[part] = self.evaluate(obs[part], action[part], memory_of_part)[0]
        return log_prob

    def more_metrics(self, numbers: Numbers) -> tuple[Tensor, ...]:
        """Values [N] of what `metric_names` has beyond METRICS."""
        return ()

    def _values(self, obs: Tensor, memory: Memory | None) -> Tensor:
        """Values [T+1, C] of obs [T+1, C, ...], a part at a time."""
        flat = rows(obs)
        values = torch.empty(len(flat), device=flat.device)
        with torch.no_grad():
            for part, memory_of_part in self.parts(len(flat), memory):
                values[part] = self.network.value(flat[part], memory_of_part)
        return values.view(obs.shape[:2])

    def _minibatches(self, batch: Batch) -> Iterator[Tensor]:
        """Rows of this learner in each gradient step of the update, int64 [n], n may be 0.

        The permutation runs over the env_steps of all learners, or, as a recurrent policy needs those of a column in
        their order, over the columns, and depends only on seed, update and epoch.
        """
        unroll_length, num_columns = batch.fields["reward"].shape
        recurrent = self.network.state_size > 0
        total = batch.total_columns * (1 if recurrent else unroll_length)
        parts = self.config.num_minibatches
        if parts > total:
            what = "columns" if recurrent else f"env_steps ({unroll_length} x {batch.total_columns} columns)"
            raise ValueError(
                f"algorithm.num_minibatches={parts} is more than the {total} {what} of one update; "
                f"use at most {total}"
            )
        for epoch in range(self.config.epochs):
            permutation = np.random.default_rng([self.seed, batch.update, epoch]).permutation(total)
            step, column = np.divmod(permutation, batch.total_columns)
            column -= batch.column_offset
            own = (column >= 0) & (column < num_columns)
            index = step * num_columns + column
            for part, is_own in zip(np.array_split(index, parts), np.array_split(own, parts), strict=True):
                chosen = torch.from_numpy(part[is_own])
                yield whole_columns(chosen, unroll_length, num_columns) if recurrent else chosen

    def _gradient(
        self, step: GradientStep, samples: Samples, index: Tensor, metrics: Metrics
    ) -> ReducedGradient:
        """Reduced gradient of one minibatch, with the sum of the KL estimate as its extra number."""
        minibatch = samples.take(index.to(samples.obs.device))
        parts = list(self.parts(len(index), minibatch.memory))
        for number, (part, memory) in enumerate(parts, 1):
            piece = minibatch if len(parts) == 1 else minibatch.part(part, memory)
            loss, count, kl_sum = self._loss(piece, metrics)
            step.add(loss, count, kl_sum, last=number == len(parts))
        return step.reduce(self.config.max_grad_norm)

    def _loss(self, samples: Samples, metrics: Metrics) -> tuple[Tensor, int, float]:
        """What has the gradient of the loss, count of the valid samples, sum of the KL estimate; adds to `metrics`.

        The loss is summed over the valid samples. Its slopes by what the network gives are written out, and returned is
        their product with that: recording so many small operations, to go back through them, would take longer than a
        small network does.
        """
        config, numbers = self.config, samples.numbers
        log_prob, entropy, value = self.evaluate(samples.obs, samples.action, samples.memory)
        with torch.no_grad():
            mask, advantage = numbers.mask, numbers.advantage
            invalid = mask == 0
            log_ratio = (log_prob - numbers.proximal_log_prob).masked_fill(invalid, 0.0)
            losses = clipped_surrogate_loss(log_ratio, advantage, config.clip_epsilon, config.dual_clip)
            slope = clipped_surrogate_slope(log_ratio, advantage, losses)
            if config.value_clip is None:
                value_losses, value_slope = value_loss(value, numbers.target), value - numbers.target
            else:
                clip = (value, numbers.target, numbers.value, config.value_clip)
                value_losses, value_slope = clipped_value_loss(*clip), clipped_value_slope(*clip)
            log_rho = (log_prob - numbers.behavior_log_prob).masked_fill(invalid, 0.0)
            clipped = outside_trust_interval(log_ratio, config.clip_epsilon).to(torch.float32)
            policy_losses, kl = numbers.weight * losses, approx_kl(log_ratio)
            more = self.more_metrics(numbers)
            count, *sums = metrics.add(
                mask, policy_losses, value_losses, entropy, kl, log_rho, clipped, *more
            )
        loss = torch.dot(log_prob, numbers.weight * slope)
        loss = loss + config.value_coefficient * torch.dot(value, mask * value_slope)
        if config.entropy_coefficient:
            loss = loss - config.entropy_coefficient * torch.dot(entropy, mask)
        # Not finite where a loss is not.
        return loss, int(count), sums[METRICS.index("approx_kl")] + 0 * sum(sums)

    def _kl_too_large(self, gradient: ReducedGradient) -> bool:
        """Equal on all learners: `gradient` is reduced."""
        target = self.config.target_kl
        return target is not None and gradient.extra > KL_MARGIN * target * gradient.samples
