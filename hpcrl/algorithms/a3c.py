"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016), by messages in place of memory that workers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.a2c import A2C
from hpcrl.algorithms.base import Batch, LocalReducer, Reducer, UpdateResult
from hpcrl.algorithms.gradient import GradientStep
from hpcrl.algorithms.metrics import Metrics
from hpcrl.config import A3CConfig, AlgorithmConfig, ModelConfig
from hpcrl.data.specs import EnvSpec, Field


class A3C(A2C):
    """The gradient of A2C, computed by whoever collected the data, and applied by the learner with one Adam for all.

    What came between the version it was computed under and the one it is applied to is not corrected: it is the lag.
    """

    Config: ClassVar[type[AlgorithmConfig]] = A3CConfig

    def __init__(self, config: A3CConfig, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        super().__init__(config, env, model, seed)
        self._local = LocalReducer()
        """of the gradients that an actor computes"""

    @property
    def gradient_fields(self) -> tuple[Field, ...]:
        """The gradient of the summed loss, and what Metrics holds."""
        metrics = Metrics(self.metric_names, torch.device("cpu"))
        return (
            Field(name="gradient", dtype="float32", shape=(self.parameters.gradient_size,)),
            Field(name="loss_sum", dtype="float64"),
            Field(name="metric_sums", dtype="float64", shape=tuple(metrics.totals().shape)),
        )

    def gradient(self, fields: Mapping[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
        """As Algorithm.gradient: one array for each of `gradient_fields`, which may be overwritten by the next call."""
        metrics = Metrics(self.metric_names, self.parameters.vector.device)
        step = GradientStep(self.parameters, self._local, alone=True)
        self.accumulate(step, fields, metrics)
        return {
            "gradient": self.parameters.gradient.numpy(),
            "loss_sum": torch.tensor(step.extra, dtype=torch.float64).numpy(),
            "metric_sums": metrics.totals().numpy(),
        }

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """Step along gradients that actors have computed, [1, C, size] each. Collective over the learners."""
        fields = batch.fields
        metrics = Metrics(self.metric_names, self.parameters.vector.device)
        step = GradientStep(self.parameters, reducer, alone=True)
        samples, loss_sum = int(fields["env_steps"].sum()), float(fields["loss_sum"].sum())
        step.add_gradient(fields["gradient"].sum((0, 1)), samples, loss_sum)
        metrics.add_totals(fields["metric_sums"].sum((0, 1)))
        return self.finish(step, batch, reducer, progress, metrics)
