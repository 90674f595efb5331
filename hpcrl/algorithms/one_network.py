"""What algorithms with one network and one Adam share: device, learning rate, gradient step, state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hpcrl.algorithms.base import Algorithm, Batch, Reducer, UpdateResult
from hpcrl.algorithms.gradient import FlatAdam, GradientStep, check_state
from hpcrl.algorithms.loss_scale import LossScale
from hpcrl.algorithms.metrics import Metrics
from hpcrl.config import AlgorithmConfig, ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.models.flat import FlatParameters
from hpcrl.models.torsos import floats_per_row

CHUNK_BYTES = 256 << 20
"""Observations, as float32, that go through the network at once unless rows_per_pass says how many."""


class OneNetworkAlgorithm(Algorithm):
    """Base of the algorithms that learn one network along one gradient.

    Attributes:
        network: what is learned; `parameters` are its own.
    """

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    config: AlgorithmConfig
    network: nn.Module

    def __init__(
        self, config: AlgorithmConfig, env: EnvSpec, model: ModelConfig, seed: int, network: nn.Module
    ) -> None:
        """`network`: made for env and model from the seed, which a derived class does."""
        self.config = config
        self.seed = seed
        self.network = network
        self.parameters = FlatParameters(network)
        self.optimizer = FlatAdam(self.parameters, config.adam_epsilon)
        self.loss_scale = LossScale(dynamic=model.precision == "float16")
        row_bytes = 4 * max(1, floats_per_row(env, model))
        self.chunk_rows = config.rows_per_pass or max(1, CHUNK_BYTES // row_bytes)
        """observations that may go through the network at once"""
        self._on_device = False

    def begin(self, batch: Batch, reducer: Reducer) -> GradientStep:
        """An empty gradient for the batch. Collective over the learners the first time, then local."""
        alone = batch.fields["reward"].shape[1] == batch.total_columns
        return GradientStep(self.parameters, reducer, alone=alone, loss_scale=self.loss_scale.value)

    def finish(
        self, step: GradientStep, batch: Batch, reducer: Reducer, progress: float, metrics: Metrics
    ) -> UpdateResult:
        """Move along the mean gradient of all learners. Collective over them."""
        gradient = step.reduce(self.config.max_grad_norm)
        learning_rate = self.learning_rate(batch.update, progress)
        skipped = self.loss_scale.skips(gradient)
        applied = skipped or gradient.finite or not batch.check_finite
        if applied and gradient.samples and not skipped:
            rates = self.rates(learning_rate, batch.update)
            with self.timed("optimizer.step"):
                self.optimizer.step(rates, gradient.vector, gradient.scale)
        if not skipped:
            metrics.gradients.append(gradient)
        means = metrics.reduce(reducer)
        means |= {"learning_rate": learning_rate, **self.loss_scale.metrics}
        return UpdateResult(metrics=means, applied=applied)

    def learning_rate(self, update: int, progress: float) -> float:
        """Step size of an update (0: the first), at the share `progress` of the budget."""
        rate, warmup = self.config.learning_rate, self.config.warmup_updates
        if update < warmup:
            rate *= (update + 1) / warmup
        if not self.config.anneal_learning_rate:
            return rate
        return rate * (1 - min(max(progress, 0.0), 1.0))

    def rates(self, learning_rate: float, update: int) -> float | Sequence[float | None]:
        """What the optimizer steps by in an update; where that has parts one rate for each, None: not this time."""
        return learning_rate

    def here(self, array: npt.NDArray[Any]) -> Tensor:
        """An array, as it lies in the host's memory, where the parameters are."""
        tensor = torch.from_numpy(array)
        return tensor.to(self.parameters.vector.device) if self._on_device else tensor

    def host(self, tensor: Tensor) -> npt.NDArray[Any]:
        """A tensor, which has no gradient, as an array in the host's memory."""
        return np.asarray((tensor.cpu() if self._on_device else tensor).numpy())

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
        """Parameters, Adam's moments and its count of steps, the loss scale of float16, as copies."""
        return self.optimizer.state() | self.loss_scale.state()

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state` bit for bit.

        Raises ValueError naming a missing or misshaped entry; nothing has changed then.
        """
        check_state(self.state(), state)
        self.optimizer.load_state(state)
        self.loss_scale.load_state(state)


def rows(values: Tensor) -> Tensor:
    """[T, C, ...] as [T * C, ...], time-major."""
    return values.flatten(0, 1)


def columns(fields: Mapping[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    """The columns [start, stop) of a batch's fields, as views."""
    return {name: values[:, start:stop] for name, values in fields.items()}
