"""What the actor-critic algorithms share: network, acting, evaluation of a batch, state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.base import Algorithm, Batch, Reducer, State, UpdateResult, Vector
from hpcrl.algorithms.gradient import FlatAdam, GradientStep, check_state
from hpcrl.algorithms.loss_scale import LossScale
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.normalizers import Normalizers
from hpcrl.config import ActorCriticConfig, ModelConfig
from hpcrl.data.specs import EnvSpec, Field
from hpcrl.functional.returns import Gae, gae
from hpcrl.models.flat import FlatParameters
from hpcrl.models.networks import ActorCritic
from hpcrl.models.recurrent import Memory
from hpcrl.models.torsos import floats_per_row

CHUNK_BYTES = 256 << 20
"""Observations, as float32, that go through the network at once unless rows_per_pass says how many."""


class ActorCriticAlgorithm(Algorithm):
    """Base of the algorithms with one policy, one value and one Adam."""

    extra_fields: ClassVar[tuple[Field, ...]] = (
        Field(name="behavior_log_prob", dtype="float32", unit="nat"),
    )
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    config: ActorCriticConfig

    def __init__(self, config: ActorCriticConfig, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.network = ActorCritic(env, model, seed)
        self._distribution = self.network.distribution  # a module's attributes are slow to look up
        self.parameters = FlatParameters(self.network)
        self.optimizer = FlatAdam(self.parameters, config.adam_epsilon)
        self.loss_scale = LossScale(dynamic=model.precision == "float16")
        row_bytes = 4 * max(1, floats_per_row(env, model))
        self.chunk_rows = config.rows_per_pass or max(1, CHUNK_BYTES // row_bytes)
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
                outputs = self._host(self.network.policy(self._here(obs)))
            else:
                policy, after = self.network.step(self._here(obs), self._here(state))
                outputs, chosen["state"] = self._host(policy), self._host(after)
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
        if self.normalizers.moments:  # else there may be no observations: gradients travel without them
            seen = self.network.seen(batch.fields["obs"])
            self.normalizers.count({**batch.fields, "obs": seen}, reducer)

    def _here(self, array: npt.NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.to(self.parameters.vector.device) if self._on_device else tensor

    def _host(self, tensor: Tensor) -> npt.NDArray[Any]:
        return np.asarray((tensor.cpu() if self._on_device else tensor).numpy())

    def learning_rate(self, update: int, progress: float) -> float:
        """Step size of an update (0: the first), at the share `progress` of the budget."""
        rate, warmup = self.config.learning_rate, self.config.warmup_updates
        if update < warmup:
            rate *= (update + 1) / warmup
        if not self.config.anneal_learning_rate:
            return rate
        return rate * (1 - min(max(progress, 0.0), 1.0))

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
        """Parameters, Adam's moments and its count of steps, running moments, the loss scale of float16, as copies."""
        return self.optimizer.state() | self.normalizers.state() | self.loss_scale.state()

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state` bit for bit.

        Raises ValueError naming a missing or misshaped entry; nothing has changed then.
        """
        check_state(self.state(), state)
        self.optimizer.load_state(state)
        self.loss_scale.load_state(state)
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

    def begin(self, batch: Batch, reducer: Reducer) -> GradientStep:
        """An empty gradient for the batch. Collective over the learners the first time, then local."""
        alone = batch.fields["reward"].shape[1] == batch.total_columns
        return GradientStep(self.parameters, reducer, alone=alone, loss_scale=self.loss_scale.value)

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

    def finish(
        self, step: GradientStep, batch: Batch, reducer: Reducer, progress: float, metrics: Metrics
    ) -> UpdateResult:
        """Move along the mean gradient of all learners. Collective over them."""
        gradient = step.reduce(self.config.max_grad_norm)
        learning_rate = self.learning_rate(batch.update, progress)
        skipped = self.loss_scale.skips(gradient)
        applied = skipped or gradient.finite or not batch.check_finite
        if applied and gradient.samples and not skipped:
            self.optimizer.step(learning_rate, gradient.vector, gradient.scale)
        if not skipped:
            metrics.gradients.append(gradient)
        means = metrics.reduce(reducer)
        means |= {"learning_rate": learning_rate, **self.loss_scale.metrics}
        return UpdateResult(metrics=means, applied=applied)


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
