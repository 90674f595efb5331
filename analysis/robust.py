"""Robust statistics over seeds and tasks (Agarwal et al. 2021). Pure: numbers in, numbers out.

`scores` are always a list with one array per task (environment), which holds one score per seed; tasks may have
different numbers of seeds. Where tasks have different scales, normalize them before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

Scores = Sequence[npt.NDArray[np.float64]]
Aggregate = Callable[[Sequence[npt.NDArray[np.float64]]], npt.NDArray[np.float64]]
"""takes one array [resamples, seeds] per task, gives [resamples]"""

RESAMPLES = 50_000
LEVEL = 0.95
_BLOCK = 5_000
"""resamples at a time, so that memory stays small"""


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def iqm(samples: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Interquartile mean of each row: of all seeds and tasks without the lowest and the highest floor(n / 4)."""
    values = np.sort(np.concatenate(samples, axis=-1), axis=-1)
    cut = values.shape[-1] // 4
    return values[..., cut : values.shape[-1] - cut].mean(axis=-1)


def mean(samples: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Mean of each row, over all seeds and tasks."""
    return np.concatenate(samples, axis=-1).mean(axis=-1)


def median(samples: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Median over the tasks of their means over the seeds; of one task the median over its seeds."""
    if len(samples) == 1:
        return np.asarray(np.median(samples[0], axis=-1))
    return np.asarray(np.median([task.mean(axis=-1) for task in samples], axis=0))


def optimality_gap(
    samples: Sequence[npt.NDArray[np.float64]], optimum: float = 1.0
) -> npt.NDArray[np.float64]:
    """Mean shortfall below `optimum` of each row; what lies above it does not make up for others."""
    return (optimum - np.minimum(np.concatenate(samples, axis=-1), optimum)).mean(axis=-1)


def estimate(scores: Scores, aggregate: Aggregate, *, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The aggregate and its 95 % interval by the stratified bootstrap: seeds are drawn anew inside each task.

    Percentile interval. Too narrow for few seeds: with three it is no more than a hint. Without any resampling
    (`resamples` 0) the ends are NaN.
    """
    value = float(aggregate([np.asarray(task, np.float64)[None] for task in scores])[0])
    if not resamples:
        return Estimate(value, math.nan, math.nan)
    return Estimate(value, *_interval(bootstrap(scores, aggregate, resamples=resamples, seed=seed)))


def bootstrap(scores: Scores, aggregate: Aggregate, *, resamples: int, seed: int) -> npt.NDArray[np.float64]:
    """The aggregate of each resample, shape [resamples]."""
    rng = np.random.default_rng(seed)
    parts = []
    for start in range(0, resamples, _BLOCK):
        count = min(_BLOCK, resamples - start)
        drawn = [task[rng.integers(len(task), size=(count, len(task)))] for task in map(np.asarray, scores)]
        parts.append(aggregate(drawn))
    return np.concatenate(parts)


def probability_of_improvement(
    first: Scores, second: Scores, *, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """P(a run of `first` scores higher than one of `second`), ties as 1/2, mean over the tasks, with its interval."""

    def aggregate(samples: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        pairs = zip(samples[: len(first)], samples[len(first) :], strict=True)
        return np.mean([_wins(one, other) for one, other in pairs], axis=0)

    return estimate([*first, *second], aggregate, resamples=resamples, seed=seed)


def difference(
    first: Scores, second: Scores, aggregate: Aggregate, *, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """Aggregate of `first` minus that of `second`, with the interval of the difference."""
    return estimate(
        [*first, *second],
        lambda samples: aggregate(samples[: len(first)]) - aggregate(samples[len(first) :]),
        resamples=resamples,
        seed=seed,
    )


def permutation_p(first: Scores, second: Scores, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided p value of "both are alike": which runs are whose is shuffled inside each task.

    The statistic is the probability of improvement, so no task counts more for its scale. Of one task with few runs
    it is exact (the Wilcoxon-Mann-Whitney test), else from `resamples` random shuffles.
    """
    rng = np.random.default_rng(seed)
    ways = math.prod(
        math.comb(len(one) + len(other), len(one)) for one, other in zip(first, second, strict=True)
    )
    exact = ways <= resamples
    nulls, seen = [], []
    for one, other in zip(first, second, strict=True):
        ranks = pd.Series(np.concatenate([one, other])).rank().to_numpy()
        seen.append(_share(ranks[None, : len(one)], len(other))[0])
        chosen = _every_choice(ranks, len(one)) if exact else _random_choices(ranks, len(one), resamples, rng)
        nulls.append(_share(chosen, len(other)))
    null = _all_sums(nulls) / len(nulls) if exact else np.mean(nulls, axis=0)
    extreme = np.count_nonzero(np.abs(null - 0.5) >= abs(np.mean(seen) - 0.5) - 1e-12)
    return float(extreme / len(null)) if exact else float((1 + extreme) / (1 + len(null)))


def smallest_p(sizes: Sequence[tuple[int, int]]) -> float:
    """The smallest two-sided p that `permutation_p` can give; `sizes`: seeds of both, per task."""
    return min(1.0, 2 / math.prod(math.comb(one + other, one) for one, other in sizes))


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected for how many comparisons there are (Holm 1979), in the same order."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def performance_profile(scores: Scores, thresholds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Share of runs whose score is above each threshold, mean over the tasks; shape of `thresholds`."""
    shares = [(np.asarray(task)[None] > thresholds[:, None]).mean(axis=1) for task in scores]
    return np.asarray(np.mean(shares, axis=0))


def _interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _wins(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of [resamples, n] and [resamples, m]: share of the n x m pairs that the first wins."""
    above = one[:, :, None] > other[:, None, :]
    equal = one[:, :, None] == other[:, None, :]
    return (above + 0.5 * equal).mean(axis=(1, 2))


def _share(chosen: npt.NDArray[np.float64], others: int) -> npt.NDArray[np.float64]:
    """Probability of improvement from the ranks [k, n] of one side among all: U / (n m)."""
    count = chosen.shape[1]
    return (chosen.sum(axis=1) - count * (count + 1) / 2) / (count * others)


def _every_choice(ranks: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    return np.array(list(itertools.combinations(ranks.tolist(), count)))


def _random_choices(
    ranks: npt.NDArray[np.float64], count: int, resamples: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    return rng.permuted(np.tile(ranks, (resamples, 1)), axis=1)[:, :count]


def _all_sums(parts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Sum of every combination of one value from each part."""
    total = np.zeros(1)
    for part in parts:
        total = (total[:, None] + part[None]).ravel()
    return total
