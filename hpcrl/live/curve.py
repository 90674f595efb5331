"""A curve of bounded size over an unbounded number of points."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

BARS = "▁▂▃▄▅▆▇█"


class Curve:
    """Means of values in equal bins over x >= 0. When x outgrows them, two bins become one."""

    def __init__(self, bins: int = 256) -> None:
        """`bins`: even; at least half of them are in use once one is."""
        self._sums, self._counts = np.zeros(bins), np.zeros(bins, np.int64)
        self._width = 1.0

    def add(self, x: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> None:
        """Take in points, both [N]; those that are not finite are left out."""
        finite = np.isfinite(values)
        x, values = x[finite], values[finite]
        while len(x) and x.max() >= self._width * len(self._sums):
            self._widen()
        places = (x / self._width).astype(np.int64)
        np.add.at(self._sums, places, values)
        np.add.at(self._counts, places, 1)

    def _widen(self) -> None:
        for bins in (self._sums, self._counts):
            half = len(bins) // 2
            bins[:half] = bins[::2] + bins[1::2]
            bins[half:] = 0
        self._width *= 2

    def means(self, points: int) -> list[float]:
        """At most so many means over equal parts of what there is, in order; one without any point is as that before.

        NaN where there is none before.
        """
        used = int(np.flatnonzero(self._counts)[-1]) + 1 if self._counts.any() else 0
        edges = np.linspace(0, used, min(points, used) + 1).round().astype(int)
        means: list[float] = []
        for first, end in pairwise(edges.tolist()):
            before = means[-1] if means else math.nan
            count = self._counts[first:end].sum()
            means.append(float(self._sums[first:end].sum() / count) if count else before)
        return means


def sparkline(values: list[float]) -> str:
    """One character per value, the lowest and the highest of them at the ends of the scale; a space for NaN. Pure."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)
