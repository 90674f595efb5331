"""Sums of squares. No torch, which not every rank loads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BLOCK = 8192


def square_sum(vector: npt.NDArray[np.float32]) -> float:
    """Sum of the squares of float32 [size], in float64. Pure."""
    starts = range(0, vector.size, _BLOCK)
    blocks = (vector[start : start + _BLOCK].astype(np.float64) for start in starts)
    return float(sum(block @ block for block in blocks))
