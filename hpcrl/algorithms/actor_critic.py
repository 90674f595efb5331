"""What the actor-critic algorithms share: network, acting, evaluation of a batch, state, metrics."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.base import Algorithm, Batch, Reducer, State, UpdateResult
from hpcrl.algorithms.gradient import FlatAdam, check_state, last_backward, open_gradient, reduce_gradient
from hpcrl.algorithms.normalizers import Normalizers
from hpcrl.config import AlgorithmConfig, ModelConfig
from hpcrl.data.specs import EnvSpec, Field
from hpcrl.functional.returns import Gae, gae
from hpcrl.functional.statistics import explained_variance, explained_variance_sums
from hpcrl.models.flat import FlatParameters
from hpcrl.models.networks import ActorCritic
from hpcrl.models.recurrent import Memory
from hpcrl.models.torsos import floats_per_row

CHUNK_BYTES = 256 << 20
"""Observations, as float32, that go through the network at once: bounds the memory of large images."""


class ActorCriticAlgorithm(Algorithm):
    """Base of the algorithms with one policy, one value and one Adam."""

    extra_fields: ClassVar[tuple[Field, ...]] = (
        Field(name="behavior_log_prob", dtype="float32", unit="nat"),
    )
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    config: AlgorithmConfig

    def __init__(self, config: AlgorithmConfig, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.network = ActorCritic(env, model, seed)
        self.parameters = FlatParameters(self.network)
        self.optimizer = FlatAdam(self.parameters, config.adam_epsilon)
        self.chunk_rows = max(1, CHUNK_BYTES // (4 * max(1, floats_per_row(env, model))))
        """observations that may go through the network at once"""
        self.normalizers = Normalizers(config, model, self.network.normalizer)
        self._on_device = False

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
    ) -> dict[str, npt.NDArray[Any]]:
        """Choose `action`, with its `behavior_log_prob` [B], for obs [B, ...]. Local; no gradient.

        A recurrent policy needs its `state` [B, size] and gives the one after.
        """
        chosen: dict[str, npt.NDArray[Any]] = {}
        if state is None and self.network.state_size:
            raise ValueError("a recurrent policy needs a state: `initial_state`, then what `act` gave last")
        with torch.inference_mode():
            if state is None:
                outputs = self._host(self.network.policy(self._here(obs)))
            else:
                policy, after = self.network.step(self._here(obs), self._here(state))
                outputs, chosen["state"] = self._host(policy), self._host(after)
        action, log_prob = self.network.distribution.sample(outputs, rng, greedy=greedy)
        return {"action": action, "behavior_log_prob": log_prob, **chosen}

    def to_env(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As Algorithm.to_env."""
        return self.network.distribution.to_env(action)

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
        log_prob, entropy = self.network.distribution.evaluate(outputs[: len(action)], action)
        return log_prob, entropy, value

    def memory(self, fields: Mapping[str, Tensor]) -> Memory | None:
        """Where a recurrent policy starts from in the columns of a batch, and where it forgets; None for others.

        As in acting: the state at the start of the trajectory is the actor's, and the observation after the reset step
        is the first of an episode.
        """
        if not self.network.state_size:
            return None
        valid = fields["valid"]
        begins = torch.cat((torch.zeros_like(valid[:1]), ~valid))
        return Memory(fields["initial_state"][0], begins)

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
        seen = self.network.seen(batch.fields["obs"])
        self.normalizers.count({**batch.fields, "obs": seen}, reducer)

    def _here(self, array: npt.NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.to(self.parameters.vector.device) if self._on_device else tensor

    def _host(self, tensor: Tensor) -> npt.NDArray[Any]:
        return np.asarray((tensor.cpu() if self._on_device else tensor).numpy())

    def learning_rate(self, progress: float) -> float:
        """Step size at the share `progress` of the budget."""
        if not self.config.anneal_learning_rate:
            return self.config.learning_rate
        return self.config.learning_rate * (1 - min(max(progress, 0.0), 1.0))

    def move(self, device: torch.device) -> None:
        """As Algorithm.move."""
        self.optimizer.move(device)
        for buffer in self.network.buffers():  # constants of a user's torso
            buffer.data = buffer.to(device)
        self._on_device = device.type != "cpu"

    def vectors(self) -> list[Tensor]:
        """Parameters and both moments of Adam."""
        return self.optimizer.vectors()

    def share(self, memories: Sequence[Tensor], own: range, stepped: Callable[[], None]) -> None:
        """As Algorithm.share."""
        self.optimizer.share(memories, own, stepped)

    def release(self) -> None:
        """As Algorithm.release."""
        self.parameters.use_gradient(torch.zeros_like(self.parameters.gradient))
        self.optimizer.release()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Parameters, Adam's moments and its count of steps, and running moments, as copies."""
        return self.optimizer.state() | self.normalizers.state()

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state` bit for bit.

        Raises ValueError naming a missing or misshaped entry; nothing has changed then.
        """
        check_state(self.state(), state)
        self.optimizer.load_state(state)
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
        open_gradient(self.parameters, reducer)
        loss_sum = self.accumulate(batch.fields, reducer, metrics)
        samples = int(batch.fields["valid"].sum())
        return self.step(batch, reducer, progress, metrics, samples, loss_sum)

    def accumulate(self, fields: Mapping[str, Tensor], reducer: Reducer, metrics: Metrics) -> float:
        """Add the gradient of the loss over all valid env_steps [T, C] to the one that is open; the sum of the loss."""
        loss_sum = 0.0
        unroll_length, num_columns = fields["reward"].shape
        # Columns do not touch each other, so large ones may go through the network one part after the other.
        stride = max(1, self.chunk_rows // (unroll_length + 1))
        for start in range(0, num_columns, stride):
            loss = self.loss(columns(fields, start, start + stride), metrics)
            completes = start + stride >= num_columns
            with last_backward(self.parameters, reducer) if completes else nullcontext():
                loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item()
        return loss_sum

    def step(
        self,
        batch: Batch,
        reducer: Reducer,
        progress: float,
        metrics: Metrics,
        samples: int,
        loss_sum: float,
    ) -> UpdateResult:
        """Step along the open gradient, the sum over this learner's `samples`. Collective over the learners."""
        gradient = reduce_gradient(reducer, samples, loss_sum, self.config.max_grad_norm)
        learning_rate = self.learning_rate(progress)
        applied = gradient.finite or not batch.check_finite
        if applied and gradient.samples:
            self.optimizer.step(learning_rate, gradient.vector, gradient.scale)
        metrics.grad_norms.append(gradient.norm)
        means = metrics.reduce(reducer)
        return UpdateResult(metrics={**means, "learning_rate": learning_rate}, applied=applied)


@dataclass(slots=True)
class Metrics:
    """Sums of one update on one learner; they add up over minibatches, then over learners."""

    names: tuple[str, ...]
    device: torch.device
    """where the samples are"""
    sums: Tensor = field(init=False)
    """float64 [1 + names]: valid samples, then one sum for each name"""
    variance_sums: Tensor = field(init=False)
    """float64 [5], of functional.statistics.explained_variance_sums"""
    grad_norms: list[float] = field(default_factory=list)
    """norm of each gradient step, equal on all learners"""

    def __post_init__(self) -> None:
        self.sums = torch.zeros(1 + len(self.names), dtype=torch.float64, device=self.device)
        self.variance_sums = torch.zeros(5, dtype=torch.float64, device=self.device)

    def add(self, mask: Tensor, *values: Tensor) -> None:
        """Add the masked sums of float [N] arrays, one for each name; mask is 1.0 where valid, else 0.0."""
        with torch.no_grad():
            self.sums += torch.stack((mask.sum(), *(torch.dot(mask, value) for value in values)))

    def add_values(self, mask: Tensor, value: Tensor, target: Tensor) -> None:
        """Add to what explained_variance is computed from; all float [N]."""
        self.variance_sums += explained_variance_sums(value, target, mask)

    def reduce(self, reducer: Reducer) -> dict[str, float]:
        """Means over all learners' valid samples. Collective over the learners: one call of the reducer."""
        vector = torch.cat((self.sums, self.variance_sums))
        reducer.sum_(vector)
        totals: list[float] = vector[: len(self.sums)].tolist()
        means = {
            name: total / totals[0] if totals[0] else math.nan
            for name, total in zip(self.names, totals[1:], strict=True)
        }
        norms = self.grad_norms
        means["grad_norm"] = sum(norms) / len(norms) if norms else math.nan
        means["explained_variance"] = explained_variance(vector[len(self.sums) :])
        return means


def rows(values: Tensor) -> Tensor:
    """[T, C, ...] as [T * C, ...], time-major."""
    return values.flatten(0, 1)


def whole_columns(columns: Tensor, length: int, num_columns: int) -> Tensor:
    """Numbers, int64 [length * n], of all rows of the `columns`, int64 [n], among length * num_columns: time-major."""
    steps = torch.arange(length, device=columns.device)
    return (steps.unsqueeze(1) * num_columns + columns).flatten()


def columns(fields: Mapping[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    """The columns [start, stop) of a batch's fields, as views."""
    return {name: values[:, start:stop] for name, values in fields.items()}
