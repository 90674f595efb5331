"""What the actor-critic algorithms share: network, acting, evaluation of a batch, state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.base import Batch, Reducer, State, UpdateResult, Vector
from hpcrl.algorithms.gradient import GradientStep
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.normalizers import Normalizers
from hpcrl.algorithms.one_network import OneNetworkAlgorithm, columns
from hpcrl.config import ActorCriticConfig, ModelConfig
from hpcrl.data.specs import EnvSpec, Field
from hpcrl.functional.returns import Gae, gae
from hpcrl.models.networks import ActorCritic
from hpcrl.models.recurrent import Memory, episode_begins


class ActorCriticAlgorithm(OneNetworkAlgorithm):
    """Base of the algorithms with one policy, one value and one Adam."""

    extra_fields: ClassVar[tuple[Field, ...]] = (
        Field(name="behavior_log_prob", dtype="float32", unit="nat"),
    )
    config: ActorCriticConfig
    network: ActorCritic

    def __init__(self, config: ActorCriticConfig, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        super().__init__(config, env, model, seed, ActorCritic(env, model, seed))
        self._distribution = self.network.distribution  # a module's attributes are slow to look up
        self.normalizers = Normalizers(config, model, self.network.normalizer)

    def initial_state(self, num_envs: int) -> State | None:
        """Zeros [num_envs, size] where model.recurrent is a cell; else None."""
        size = self.network.state_size
        return np.zeros((num_envs, size), np.float32) if size else None

    def act(
        self,
        obs: npt.NDArray[Any],
        rng: np.random.Generator,
        *,
        state: State | None = None,
        greedy: bool = False,
        exploration: Vector | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Choose `action`, with its `behavior_log_prob` [B], for obs [B, ...]. Local; no gradient.

        A recurrent policy needs its `state` [B, size] and gives the one after. It explores by itself: without
        `exploration`.
        """
        chosen: dict[str, npt.NDArray[Any]] = {}
        if state is None and self.network.state_size:
            raise ValueError("a recurrent policy needs a state: `initial_state`, then what `act` gave last")
        with torch.inference_mode():
            if state is None:
                outputs = self.host(self.network.policy(self.here(obs)))
            else:
                policy, after = self.network.step(self.here(obs), self.here(state))
                outputs, chosen["state"] = self.host(policy), self.host(after)
        action, log_prob = self._distribution.sample(outputs, rng, greedy=greedy)
        return {"action": action, "behavior_log_prob": log_prob, **chosen}

    def to_env(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As Algorithm.to_env."""
        return self._distribution.to_env(action)

    def evaluate(
        self, obs: Tensor, action: Tensor, memory: Memory | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability and entropy of the policy, and the value; the gradient flows.

        Args:
            obs: [M, *shape].
            action: [N, ...] with N <= M, of the first N observations.
            memory: what `memory` gives of the same columns.

        Returns:
            log_prob [N], entropy [N], value [M].
        """
        outputs, value = self.network(obs, memory)
        log_prob, entropy = self._distribution.evaluate(outputs[: len(action)], action)
        return log_prob, entropy, value

    def memory(self, fields: Mapping[str, Tensor]) -> Memory | None:
        """Where a recurrent policy starts from in the columns of a batch, and where it forgets; None for others."""
        if not self.network.state_size:
            return None
        return Memory(fields["initial_state"][0], episode_begins(fields["valid"]))

    def parts(self, num_rows: int, memory: Memory | None) -> Iterator[tuple[slice | Tensor, Memory | None]]:
        """Rows, of `num_rows` time-major ones, that go through the network at once, one part after the other.

        Sequences stay whole: of those of `memory` a part has all rows, which are numbers then.
        """
        if memory is None:
            for start in range(0, num_rows, self.chunk_rows):
                yield slice(start, start + self.chunk_rows), None
            return
        columns = torch.arange(len(memory.state), device=memory.state.device)
        length = num_rows // max(1, len(columns))
        stride = max(1, self.chunk_rows // max(1, length))
        for start in range(0, len(columns), stride):
            part = columns[start : start + stride]
            yield whole_columns(part, length, len(columns)), memory.columns(part)

    def training_reward(self, fields: Mapping[str, Tensor]) -> Tensor:
        """Rewards [T, C], 0 where not valid: clipped, times reward_scale, or as normalize_returns says."""
        reward = fields["reward"].masked_fill(~fields["valid"], 0.0)
        if self.config.normalize_returns:
            return self.normalizers.scale_reward(reward)
        clip, scale = self.config.reward_clip, self.config.reward_scale
        reward = reward if clip is None else reward.clamp(-clip, clip)
        return reward if scale == 1.0 else reward * scale

    def advantages(self, fields: Mapping[str, Tensor], values: Tensor, lambda_: float) -> Gae:
        """Generalized advantages and value targets [T, C] of a batch's `fields`, under values [T+1, C]."""
        return gae(
            self.training_reward(fields),
            values[:-1],
            values[1:],
            fields["terminated"],
            fields["truncated"],
            gamma=self.config.gamma,
            lambda_=lambda_,
        )

    def observe(self, batch: Batch, reducer: Reducer) -> None:
        """As Algorithm.observe: moments of observations, which go into the parameters, and of returns."""
        if self.normalizers.moments:  # else there may be no observations: gradients travel without them
            seen = self.network.parts.seen(batch.fields["obs"])
            self.normalizers.count({**batch.fields, "obs": seen}, reducer)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Parameters, Adam's moments and its count of steps, running moments, the loss scale of float16, as copies."""
        return super().state() | self.normalizers.state()

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """As OneNetworkAlgorithm.load_state."""
        super().load_state(state)
        self.normalizers.load_state(state)


class OneStepAlgorithm(ActorCriticAlgorithm):
    """Base of those that take one gradient step per update, along the mean over all valid env_steps of the batch.

    Attributes:
        metric_names: what `loss` adds to the metrics, in its order.
    """

    metric_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def loss(self, fields: Mapping[str, Tensor], metrics: Metrics) -> Tensor:
        """Sum of the loss over the valid env_steps of some columns [T, C]; adds to `metrics`."""

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """Step along the mean of the loss. Collective over the learners: two calls of the reducer."""
        metrics = Metrics(self.metric_names, self.parameters.vector.device)
        step = self.begin(batch, reducer)
        self.accumulate(step, batch.fields, metrics)
        return self.finish(step, batch, reducer, progress, metrics)

    def accumulate(self, step: GradientStep, fields: Mapping[str, Tensor], metrics: Metrics) -> None:
        """Add the gradient of the loss over all valid env_steps [T, C] to that of the step."""
        unroll_length, num_columns = fields["reward"].shape
        # Columns do not touch each other, so many may go through the network one part after the other.
        stride = max(1, self.chunk_rows // (unroll_length + 1))
        for start in range(0, num_columns, stride):
            part = columns(fields, start, start + stride)
            loss = self.loss(part, metrics)
            last = start + stride >= num_columns
            step.add(loss, int(part["valid"].sum()), loss.item(), last=last)


def whole_columns(columns: Tensor, length: int, num_columns: int) -> Tensor:
    """Numbers, int64 [length * n], of all rows of the `columns`, int64 [n], among length * num_columns: time-major."""
    steps = torch.arange(length, device=columns.device)
    return (steps.unsqueeze(1) * num_columns + columns).flatten()
