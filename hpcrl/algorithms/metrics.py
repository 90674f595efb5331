"""What an update says of itself: sums over its env_steps, and the gradients it stepped along."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from hpcrl.algorithms.base import Reducer
from hpcrl.algorithms.gradient import ReducedGradient
from hpcrl.functional.statistics import (
    explained_variance,
    explained_variance_sums,
    size_histogram,
    size_quantile,
)

LOG_RHO = "log_rho_mean"
"""The metric whose values also go into a histogram."""
LOG_RHO_SHARES = {"log_rho_p50": 0.5, "log_rho_p90": 0.9, "log_rho_p99": 0.99, "log_rho_max": 1.0}
"""Metric -> quantile of |log rho|."""


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
    log_rhos: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """log importance weights and masks, [N] each, as they were added"""
    others: Tensor | None = None
    """what `add_totals` was given"""
    gradients: list[ReducedGradient] = field(default_factory=list)
    """of each gradient step, equal on all learners"""

    def __post_init__(self) -> None:
        self.sums = torch.zeros(1 + len(self.names), dtype=torch.float64, device=self.device)
        self.variance_sums = torch.zeros(5, dtype=torch.float64, device=self.device)

    def add(self, mask: Tensor, *values: Tensor) -> list[float]:
        """Add the masked sums of float [N] arrays, one for each name; mask is 1.0 where valid, else 0.0.

        Returns what was added: the number of valid samples, then a sum for each name.
        """
        with torch.no_grad():
            # one product: many small ones cost more
            added = torch.mv(torch.stack((mask, *values)), mask)
            self.sums += added
            if LOG_RHO in self.names:
                self.log_rhos.append((values[self.names.index(LOG_RHO)].detach(), mask))
            sums: list[float] = added.tolist()
            return sums

    def add_values(self, mask: Tensor, value: Tensor, target: Tensor) -> None:
        """Add to what explained_variance is computed from; all float [N]."""
        self.variance_sums += explained_variance_sums(value, target, mask)

    def totals(self) -> Tensor:
        """What adds up over learners, float64 [size]; also over Metrics of the same names elsewhere: `add_totals`."""
        none = torch.zeros(0, device=self.device)
        log_rho, mask = (torch.cat(parts) for parts in zip((none, none), *self.log_rhos, strict=True))
        own = torch.cat((self.sums, self.variance_sums, size_histogram(log_rho, mask)))
        return own if self.others is None else own + self.others

    def add_totals(self, totals: Tensor) -> None:
        """Add the `totals` of others."""
        self.others = totals if self.others is None else self.others + totals

    def reduce(self, reducer: Reducer) -> dict[str, float]:
        """Means over all learners' valid samples. Collective over the learners: one call of the reducer."""
        vector = self.totals()
        reducer.sum_(vector)
        values: list[float] = vector.tolist()
        size = len(self.sums)
        means = {
            name: total / values[0] if values[0] else math.nan
            for name, total in zip(self.names, values[1:size], strict=True)
        }
        means |= self._of_gradients()
        means["explained_variance"] = explained_variance(values[size : size + 5])
        if LOG_RHO in self.names:
            below = list(accumulate(values[size + 5 :]))
            means |= {name: size_quantile(below, share) for name, share in LOG_RHO_SHARES.items()}
        return means

    def _of_gradients(self) -> dict[str, float]:
        """Means over the gradient steps; of the noise over those where it could be seen."""
        norms = [gradient.norm for gradient in self.gradients]
        means = {"grad_norm": sum(norms) / len(norms) if norms else math.nan}
        seen = [gradient for gradient in self.gradients if not math.isnan(gradient.square)]
        if seen:
            square = sum(gradient.square for gradient in seen) / len(seen)
            variance = sum(gradient.variance for gradient in seen) / len(seen)
            ratio = variance / square if square > 0 else math.nan
            means |= {"grad_square": square, "grad_variance": variance, "noise_scale": ratio}
        return means
