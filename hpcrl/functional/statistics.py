"""Statistics over the samples of all learners, in float64."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

Sum = Callable[[Tensor], None]
"""Replaces a contiguous 1-D vector by its sum over all learners, in place (collective over them)."""

CONSTANT = 1e-12
"""A variance below this share of the mean square is rounding of a constant."""
SMALLEST_SIZE, LARGEST_SIZE, NUM_SIZES = 1e-4, 30.0, 96
"""Edges of the bins of `size_histogram`: a geometric sequence, each 14 % above the one before."""


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


PART = 1 << 16
"""Rows that are taken to float64 at once: bounds the memory."""


@dataclass(frozen=True, slots=True)
class RunningMoments:
    """Mean and spread of each feature over what was counted so far; merging costs no digits (Chan et al. 1979)."""

    count: float
    mean: Tensor
    """float64 [*features]; 0 where nothing is counted"""
    squares: Tensor
    """float64 [*features], sum of the squared distances from the mean"""

    @staticmethod
    def nothing(features: tuple[int, ...]) -> RunningMoments:
        """Of no row."""
        zeros = torch.zeros(features, dtype=torch.float64)
        return RunningMoments(0.0, zeros, zeros)

    @property
    def variance(self) -> Tensor:
        """float64 [*features], divided by the count, not by one less."""
        return self.squares / max(self.count, 1.0)

    def merge(self, other: RunningMoments) -> RunningMoments:
        """Of what either has counted, which must have no row in common."""
        count = self.count + other.count
        share = other.count / max(count, 1.0)
        delta = other.mean - self.mean
        squares = self.squares + other.squares + delta.square() * (self.count * share)
        return RunningMoments(count, self.mean + delta * share, squares)

    def inverse_std(self, epsilon: float) -> Tensor:
        """1 / sqrt(variance + epsilon), float64 [*features]; 1 as long as nothing is counted."""
        if self.count == 0:
            return torch.ones_like(self.mean)
        return torch.rsqrt(self.variance + epsilon)


def moments_of(values: Tensor, valid: Tensor) -> RunningMoments:
    """Of the valid rows of `values`, float [N, *features]; valid is bool [N], other rows are never read. On the CPU."""
    total = RunningMoments.nothing(tuple(values.shape[1:]))
    for start in range(0, len(values), PART):
        part = slice(start, start + PART)
        kept = values[part][valid[part]].double()
        mean = kept.sum(0) / max(len(kept), 1)
        squares = (kept - mean).square().sum(0)
        total = total.merge(RunningMoments(float(len(kept)), mean.cpu(), squares.cpu()))
    return total


def sum_moments(own: RunningMoments, sum_: Sum) -> RunningMoments:
    """Merge the moments of all learners, whatever the order: bit-equal on all of them.

    Collective: two calls of `sum_`, also where nothing is counted. In the second one the distances are those from the
    common mean, so that a mean far from zero costs no digits.
    """
    features = own.mean.shape
    first = torch.cat((torch.tensor([own.count], dtype=torch.float64), (own.mean * own.count).reshape(-1)))
    sum_(first)
    count = first[0].item()
    mean = first[1:].reshape(features) / max(count, 1.0)
    second = (own.squares + (own.mean - mean).square() * own.count).reshape(-1)
    sum_(second)
    return RunningMoments(count, mean, second.reshape(features))


def explained_variance_sums(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Masked count and sums of target, target^2, error and error^2, float64 [5].

    Sums of several learners add up; `explained_variance` reads the total. All arguments are float [N];
    mask is 1.0 where valid, else 0.0.
    """
    mask, target = mask.double(), target.double()
    error = target - value.double()
    return torch.mv(torch.stack((mask, target, target.square(), error, error.square())), mask)


def explained_variance(sums: Sequence[float]) -> float:
    """1 - Var(target - value) / Var(target) from `explained_variance_sums`; NaN for a constant target."""
    count, target, target_square, error, error_square = sums
    if count == 0:
        return math.nan
    variance = target_square / count - (target / count) ** 2
    if not variance > CONSTANT * target_square / count:
        return math.nan
    return 1.0 - (error_square / count - (error / count) ** 2) / variance


class GradientNoise(NamedTuple):
    """Unbiased estimates (McCandlish et al. 2018, eq. A.2 and A.3); either may be negative."""

    square: float
    """|G|^2, of the true gradient G"""
    variance: float
    """tr(Sigma), of the gradients of single samples; over |G|^2 it is the simple noise scale, in samples"""


def gradient_noise(
    parts: float, square_sum: float, inverse_sum: float, norm: float, samples: float
) -> GradientNoise:
    """Noise of a gradient from its norm over a batch and over parts of it; NaN unless the parts are smaller.

    E|g_b|^2 = |G|^2 + tr(Sigma) / b for a mean g_b over b independent samples. Both estimates scatter: average
    each over many steps before dividing.

    Args:
        parts: number of parts.
        square_sum: sum over them of the squared norm of the mean gradient.
        inverse_sum: sum over them of 1 / samples.
        norm: norm of the mean gradient over the whole batch.
        samples: of the whole batch.
    """
    if not parts or not inverse_sum / parts > (1 + 1e-9) / samples:
        return GradientNoise(math.nan, math.nan)
    variance = (square_sum / parts - norm**2) / (inverse_sum / parts - 1 / samples)
    return GradientNoise(norm**2 - variance / samples, variance)


def size_histogram(values: Tensor, mask: Tensor) -> Tensor:
    """How many of |values| lie at or below each edge and above the one before, float64 [NUM_SIZES]; sums add up.

    The first bin begins at 0; the last one also holds what is larger, or NaN. values, mask: float [N]; mask is 1.0
    where valid, else 0.0.
    """
    places = torch.bucketize(values.abs(), _inner_edges(values.device))
    counts = torch.zeros(NUM_SIZES, dtype=torch.float64, device=values.device)
    return counts.index_add_(0, places, mask.double())


@cache
def _inner_edges(device: torch.device) -> Tensor:
    edges = torch.logspace(math.log10(SMALLEST_SIZE), math.log10(LARGEST_SIZE), NUM_SIZES)
    return edges[:-1].to(device)


def size_quantile(below: Sequence[float], share: float) -> float:
    """Edge of the bin that holds the quantile, from the cumulated counts of a `size_histogram`; NaN without samples.

    No less than the smallest of |values| that at least `share` of them do not exceed, and less than 15 % above it where
    that lies between SMALLEST_SIZE and LARGEST_SIZE.
    """
    total = below[-1]
    if not total:
        return math.nan
    place = bisect_left(below, share * total)
    return float(SMALLEST_SIZE * (LARGEST_SIZE / SMALLEST_SIZE) ** (place / (NUM_SIZES - 1)))
