"""Statistics over the samples of all learners, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Sum = Callable[[Tensor], None]
"""Replaces a contiguous 1-D vector by its sum over all learners, in place (collective over them)."""

CONSTANT = 1e-12
"""A variance below this share of the mean square is rounding of a constant."""


class Moments(NamedTuple):
    """Of all valid values on all learners; mean and variance are 0 when there are none."""

    samples: float
    mean: float
    variance: float
    """divided by the number of samples, not by one less"""


def global_moments(values: Tensor, valid: Tensor, sum_: Sum) -> Moments:
    """Mean and variance of the valid entries over all learners.

    Two passes, so that a mean far from zero costs no digits. Collective: two calls of `sum_`, also without
    samples.

    Args:
        values: float, any shape; entries that are not valid are never read, NaN included.
        valid: bool, same shape.
        sum_: sums a float64 vector over all learners; `lambda vector: None` for one.
    """
    chosen = values[valid].double()
    samples = torch.tensor(float(chosen.numel()), dtype=torch.float64, device=chosen.device)
    first = torch.stack((samples, chosen.sum()))
    sum_(first)
    count, total = first.tolist()
    mean = total / max(count, 1.0)
    second = (chosen - mean).square().sum().reshape(1)
    sum_(second)
    return Moments(count, mean, second.item() / max(count, 1.0))


def explained_variance_sums(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Masked count and sums of target, target^2, error and error^2, float64 [5].

    Sums of several learners add up; `explained_variance` reads the total. All arguments are float [N];
    mask is 1.0 where valid, else 0.0.
    """
    mask, target = mask.double(), target.double()
    error = target - value.double()
    terms = (target, target.square(), error, error.square())
    return torch.stack((mask.sum(), *(torch.dot(mask, term) for term in terms)))


def explained_variance(sums: Tensor) -> float:
    """1 - Var(target - value) / Var(target) from `explained_variance_sums`; NaN for a constant target."""
    totals: list[float] = sums.tolist()
    count, target, target_square, error, error_square = totals
    if count == 0:
        return math.nan
    variance = target_square / count - (target / count) ** 2
    if not variance > CONSTANT * target_square / count:
        return math.nan
    return 1.0 - (error_square / count - (error / count) ** 2) / variance
