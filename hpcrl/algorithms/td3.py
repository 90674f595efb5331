"""TD3 (Fujimoto et al. 2018): a deterministic policy, learned off-policy; by its keys DDPG (Lillicrap et al. 2016)."""

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
from hpcrl.config import AlgorithmConfig, ModelConfig, TD3Config
from hpcrl.data.specs import EnvSpec
from hpcrl.functional.losses import least_value_target


class TD3(ContinuousAlgorithm):
    """The policy is tanh of its outputs.

    y = reward + discount * min_i Q'_i(s', cut(pi'(s') + cut(noise))), all of the target networks
    policy, in every policy_delay-th update: -Q_1(s, pi(s))
    """

    Config: ClassVar[type[AlgorithmConfig]] = TD3Config
    metric_names: ClassVar[tuple[str, ...]] = ("value_loss", "q_value", "q_target", "td_error", "policy_loss")
    noises = 1
    config: TD3Config

    def __init__(self, config: TD3Config, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        super().__init__(config, env, model, seed, outputs=1)
        self._steps_policy = True

    def choose(
        self, outputs: npt.NDArray[np.float32], rng: np.random.Generator, *, greedy: bool
    ) -> npt.NDArray[np.float32]:
        """As ContinuousAlgorithm.choose; greedy: without the noise."""
        action = np.tanh(outputs)
        if greedy or not self.config.exploration_noise:
            return action
        noise = rng.standard_normal(action.shape, np.float32) * np.float32(self.config.exploration_noise)
        return np.asarray(np.clip(action + noise, -1, 1), np.float32)

    def smoothed(self, action: Tensor, noise: Tensor) -> Tensor:
        """Actions [N, size] of the target policy with standard normal `noise` (eq. 15), cut at the bounds."""
        config = self.config
        if not config.target_noise:
            return action
        limit = config.target_noise_clip
        return (action + (noise * config.target_noise).clamp(-limit, limit)).clamp(-1, 1)

    def loss(self, fields: Mapping[str, Tensor], metrics: Metrics) -> Loss:
        """As OffPolicyAlgorithm.loss."""
        batch = self.transitions(fields)
        policy, critics = self.network.policy, self.network.critics
        with torch.no_grad(), self.target.using():
            next_action = self.smoothed(policy.forward(batch.next_obs).tanh(), batch.noise[:, 0])
            next_values = critics.forward(critics.encode(batch.next_obs), next_action)
            target = least_value_target(batch.reward, batch.discount, next_values)
        features = critics.encode(batch.obs)
        critic = self.critics_loss(batch, target, features)
        total, policy_loss = critic.losses.sum(), torch.zeros_like(target)
        if self._steps_policy:
            action = policy.forward(batch.obs).tanh()
            policy_loss = -critics.forward(features.detach(), action, frozen=True)[0]
            total = total + policy_loss.dot(batch.mask)
        metrics.add(batch.mask, critic.losses, critic.value, target, critic.td_error, policy_loss)
        metrics.add_values(batch.mask, critic.value, target)
        return Loss(total, int(batch.mask.sum()), critic.td_error)

    def rates(self, learning_rate: float, update: int) -> Sequence[float | None]:
        """As OneNetworkAlgorithm.rates: the policy waits for its turn."""
        policy, critics = super().rates(learning_rate, update)
        return (policy if self._steps_policy else None, critics)

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """As ContinuousAlgorithm.update; where the policy is not stepped its loss is not known."""
        self._steps_policy = (batch.update + 1) % self.config.policy_delay == 0
        result = super().update(batch, reducer, progress)
        if self._steps_policy:
            return result
        return replace(result, metrics=result.metrics | {"policy_loss": float("nan")})
