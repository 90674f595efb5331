"""What SAC, TD3 and DDPG share: policy and critics in one vector, random actions at first, noise within updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.base import Batch, Reducer, State, UpdateResult, Vector
from hpcrl.algorithms.gradient import FlatAdam
from hpcrl.algorithms.off_policy import OffPolicyAlgorithm
from hpcrl.config import ConfigError, ContinuousConfig, ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.models.action_distributions import Bounds, require_bounds
from hpcrl.models.critics import PolicyAndCritics


class Transitions(NamedTuple):
    """N sampled transitions, as data.specs.transition_spec has them, and random numbers."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    weight: Tensor
    mask: Tensor
    """float32 [N], 1 where valid; else 0, like reward and weight"""
    noise: Tensor
    """float32 [N, noises, size], standard normal"""


class CriticsLoss(NamedTuple):
    """Of N transitions; losses and errors are 0 where not valid."""

    losses: Tensor
    """[N], with the weights; the gradient flows"""
    value: Tensor
    """[N], mean of the critics"""
    td_error: Tensor
    """[N], mean of the critics' absolute errors"""


class ContinuousAlgorithm(OffPolicyAlgorithm):
    """Base of those with a policy of continuous actions and critics, stepped at once along one gradient.

    Actions are stored, and seen by the critics, in units of their bounds: -1 is the lowest, 1 the highest; `to_env`
    scales them. Nothing off-policy asks for the density of a stored action, so what it was before it was squashed or
    cut is not needed.

    One backward pass gives the gradients of all: the critics are constants for the policy (those before the step, as
    the policy is for the target), so one reduction and one optimizer do. The vector holds policy, critics, temperature,
    in this order, each stepped with a learning rate of its own.

    Attributes:
        noises: standard normal numbers that `loss` needs of each transition, for each dimension of the action.
    """

    noises: int
    config: ContinuousConfig
    network: PolicyAndCritics

    def __init__(
        self,
        config: ContinuousConfig,
        env: EnvSpec,
        model: ModelConfig,
        seed: int,
        *,
        outputs: int,
        temperature: float | None = None,
    ) -> None:
        """`outputs`: that the policy has for each dimension of an action.

        Raises ConfigError for actions that are not continuous, or not bounded.
        """
        key = f"algorithm.name={config.name}"
        if env.action.kind != "continuous":
            raise ConfigError(
                f"{key} does not fit the {env.action.kind} actions of {env.id}: it is for continuous ones; use "
                "algorithm.name=dqn or ppo"
            )
        require_bounds(env, key, "algorithm.name=ppo")
        self._size = env.action.size
        self._bounds = Bounds(env.action.low, env.action.high)
        network = PolicyAndCritics(
            env,
            model,
            seed,
            num_outputs=outputs * self._size,
            num_critics=config.num_critics,
            temperature=temperature,
        )
        super().__init__(config, env, model, seed, network)
        self.optimizer = FlatAdam(self.parameters, config.adam_epsilon, network.parts())

    def act(
        self,
        obs: npt.NDArray[Any],
        rng: np.random.Generator,
        *,
        state: State | None = None,
        greedy: bool = False,
        exploration: Vector | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Choose `action` [B, size], in units of the bounds, for obs [B, ...]. Local; no gradient.

        `exploration` [B]: where it is not 0 the action is drawn uniformly; None: nowhere.
        """
        if greedy or exploration is None or not exploration.any():
            return {"action": self._chosen(obs, rng, greedy=greedy)}
        action = rng.uniform(-1, 1, (len(obs), self._size)).astype(np.float32)
        if not exploration.all():
            action = np.where(exploration[:, None] != 0, action, self._chosen(obs, rng, greedy=False))
        return {"action": action}

    def exploration(self, envs: npt.NDArray[np.int64], num_envs: int, env_steps: int) -> Vector:
        """As Algorithm.exploration: 1 before `random_env_steps`, then 0."""
        return np.full(len(envs), env_steps < self.config.random_env_steps, np.float32)

    def to_env(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As Algorithm.to_env."""
        return self._bounds.scaled(action)

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """As OffPolicyAlgorithm.update, with the noise of this update."""
        return super().update(
            replace(batch, fields={**batch.fields, "noise": self.noise(batch)}), reducer, progress
        )

    def noise(self, batch: Batch) -> Tensor:
        """Standard normal numbers for this learner's columns, float32 [1, C, noises, size].

        Those of a column depend on the seed, the update and its index among all learners' columns alone: drawn for all
        of them, which costs less than a generator for each.
        """
        rng = np.random.default_rng((self.seed, batch.update))
        drawn = rng.standard_normal((1, batch.total_columns, self.noises, self._size), np.float32)
        count = batch.fields["reward"].shape[1]
        return self.here(drawn[:, batch.column_offset : batch.column_offset + count])

    def rates(self, learning_rate: float, update: int) -> Sequence[float | None]:
        """As OneNetworkAlgorithm.rates: of policy and critics."""
        own = self.config.policy_learning_rate
        return (self.scaled_rate(own, learning_rate), learning_rate)

    def scaled_rate(self, own: float | None, learning_rate: float) -> float:
        """A learning rate that falls and rises as that of the critics does; None: that itself."""
        return learning_rate if own is None else own * learning_rate / self.config.learning_rate

    def transitions(self, fields: Mapping[str, Tensor]) -> Transitions:
        """The fields [1, N, ...] of some columns."""
        one = {name: values[0] for name, values in fields.items()}
        invalid, mask = ~one["valid"], one["valid"].to(torch.float32)
        one["reward"] = one["reward"].masked_fill(invalid, 0.0)
        one["weight"] = one["weight"].masked_fill(invalid, 0.0)
        return Transitions(mask=mask, **{name: one[name] for name in Transitions._fields if name != "mask"})

    def critics_loss(self, batch: Transitions, target: Tensor, features: Tensor) -> CriticsLoss:
        """Of all critics together: 0.5 * weight * sum_i (Q_i - target)^2.

        `target` [N]; `features`: of the observations, as the critics encode them.
        """
        values = self.network.critics.forward(features, batch.action)
        errors = values - target
        losses = errors.square().sum(0) * (0.5 * batch.weight)
        return CriticsLoss(losses, values.detach().mean(0), errors.detach().abs().mean(0) * batch.mask)

    def _chosen(self, obs: npt.NDArray[Any], rng: np.random.Generator, *, greedy: bool) -> npt.NDArray[Any]:
        with torch.inference_mode():
            outputs = self.host(self.network.policy.act(self.here(obs)))
        return self.choose(outputs, rng, greedy=greedy)

    @abstractmethod
    def choose(
        self, outputs: npt.NDArray[np.float32], rng: np.random.Generator, *, greedy: bool
    ) -> npt.NDArray[np.float32]:
        """Actions [B, size] of the policy's outputs [B, num_outputs]."""
