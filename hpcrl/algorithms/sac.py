"""SAC (Haarnoja et al. 2018): off-policy learning of a stochastic policy that maximizes entropy along with rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.base import Batch, Reducer, UpdateResult
from hpcrl.algorithms.continuous import ContinuousAlgorithm
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.off_policy import Loss
from hpcrl.config import AlgorithmConfig, ModelConfig, SACConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.functional.distributions import reparameterized_tanh_gaussian
from hpcrl.functional.losses import least_value_target, temperature_loss

LEAST_LOG_STD, LARGEST_LOG_STD = -20.0, 2.0
"""Where the log standard deviations of the policy are cut."""


class SAC(ContinuousAlgorithm):
    """tanh of normals whose means and log standard deviations are the policy's outputs; densities are those in [-1, 1].

    y = reward + discount * (min_i Q'_i(s', a') - temperature * log pi(a' | s')), with a' of the policy as it is
    policy: temperature * log pi(a | s) - min_i Q_i(s, a), with a reparameterized
    """

    Config: ClassVar[type[AlgorithmConfig]] = SACConfig
    metric_names: ClassVar[tuple[str, ...]] = (
        "value_loss",
        "q_value",
        "q_target",
        "td_error",
        "policy_loss",
        "entropy",
    )
    noises = 2
    config: SACConfig

    def __init__(self, config: SACConfig, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        super().__init__(config, env, model, seed, outputs=2, temperature=config.initial_temperature)
        self.network.policy.head.bias.data[self._size :] = model.initial_log_std
        self._target_entropy = -float(self._size) if config.target_entropy is None else config.target_entropy

    def choose(
        self, outputs: npt.NDArray[np.float32], rng: np.random.Generator, *, greedy: bool
    ) -> npt.NDArray[np.float32]:
        """As ContinuousAlgorithm.choose; greedy: tanh of the means."""
        mean = outputs[:, : self._size]
        if not greedy:
            std = np.exp(outputs[:, self._size :].clip(LEAST_LOG_STD, LARGEST_LOG_STD))
            mean = mean + std * rng.standard_normal(mean.shape, np.float32)
        return np.tanh(mean)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [N, size] of the policy for obs [N, ...], made of `noise` [N, size], and their log-densities [N]."""
        mean, log_std = self.network.policy.forward(obs).chunk(2, -1)
        return reparameterized_tanh_gaussian(mean, log_std.clamp(LEAST_LOG_STD, LARGEST_LOG_STD), noise)

    def loss(self, fields: Mapping[str, Tensor], metrics: Metrics) -> Loss:
        """As OffPolicyAlgorithm.loss."""
        batch = self.transitions(fields)
        log_temperature = self.network.temperature.log
        temperature = log_temperature.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self.sample(batch.next_obs, batch.noise[:, 0])
            with self.target.using():
                critics = self.network.critics
                next_values = critics.forward(critics.encode(batch.next_obs), next_action)
            target = least_value_target(
                batch.reward, batch.discount, next_values, -temperature * next_log_prob
            )
        features = self.network.critics.encode(batch.obs)
        critic = self.critics_loss(batch, target, features)
        action, log_prob = self.sample(batch.obs, batch.noise[:, 1])
        values = self.network.critics.forward(features.detach(), action, frozen=True)
        policy_loss = temperature * log_prob - values.amin(0)
        total = critic.losses.sum() + policy_loss.dot(batch.mask)
        if self.config.auto_temperature:
            of_temperature = temperature_loss(log_temperature, log_prob, self._target_entropy)
            total = total + of_temperature.dot(batch.mask)
        metrics.add(batch.mask, critic.losses, critic.value, target, critic.td_error, policy_loss, -log_prob)
        metrics.add_values(batch.mask, critic.value, target)
        return Loss(total, int(batch.mask.sum()), critic.td_error)

    def rates(self, learning_rate: float, update: int) -> Sequence[float | None]:
        """As OneNetworkAlgorithm.rates: of policy, critics and temperature."""
        own = self.config.temperature_learning_rate
        temperature = self.scaled_rate(own, learning_rate) if self.config.auto_temperature else None
        return (*super().rates(learning_rate, update), temperature)

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """As ContinuousAlgorithm.update; the temperature after it is among the metrics."""
        result = super().update(batch, reducer, progress)
        temperature = self.network.temperature.log.detach().exp().item()
        return replace(result, metrics=result.metrics | {"temperature": temperature})
