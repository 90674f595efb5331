"""Sums of several arrays in one pass over memory, compiled. Imports numba: a second, so import it late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

NORM_BLOCK = 4096
"""Elements whose squares are added up as one number."""
_WIDTH = 8
"""Sources of one pass."""
_LANES = 128
_CACHED = 1 << 15
"""Elements of an intermediate sum, few enough for the second cache."""

_compile = numba.njit(cache=True, nogil=True)


@_compile
def _sum2(out: Any, a: Any, b: Any) -> None:
    for i in range(out.size):
        out[i] = a[i] + b[i]


@_compile
def _sum3(out: Any, a: Any, b: Any, c: Any) -> None:
    for i in range(out.size):
        out[i] = (a[i] + b[i]) + c[i]


@_compile
def _sum4(out: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    for i in range(out.size):
        out[i] = (a[i] + b[i]) + (c[i] + d[i])


@_compile
def _sum5(out: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
    for i in range(out.size):
        out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + e[i]


@_compile
def _sum6(out: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
    for i in range(out.size):
        out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + (e[i] + f[i])


@_compile
def _sum7(out: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> None:
    for i in range(out.size):
        out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + g[i])


@_compile
def _sum8(out: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> None:
    for i in range(out.size):
        out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]))


_SUMS: dict[int, Any] = {2: _sum2, 3: _sum3, 4: _sum4, 5: _sum5, 6: _sum6, 7: _sum7, 8: _sum8}


def sum_into(out: npt.NDArray[Any], sources: Sequence[npt.NDArray[Any]]) -> None:
    """Write the sum of equal-shaped 1-D arrays to `out`, in the order of `message_sum.tree_sum`. Pure.

    `out` may be one of the sources. float32 or float64, all of one kind.
    """
    if len(sources) == 1:
        np.copyto(out, sources[0])
    elif len(sources) <= _WIDTH:
        _SUMS[len(sources)](out, *sources)
    else:
        _sum_many(out, sources)


def _sum_many(out: npt.NDArray[Any], sources: Sequence[npt.NDArray[Any]]) -> None:
    """Eight neighbors are a whole branch of the tree, so the sums of the groups are added up like sources."""
    groups = [sources[start : start + _WIDTH] for start in range(0, len(sources), _WIDTH)]
    partial = np.empty((len(groups), min(_CACHED, out.size)), out.dtype)
    for start in range(0, out.size, _CACHED):
        part = slice(start, min(start + _CACHED, out.size))
        rows = [row[: part.stop - start] for row in partial]
        for row, group in zip(rows, groups, strict=True):
            sum_into(row, [source[part] for source in group])
        sum_into(out[part], rows)


@_compile
def _square_sums(vector: Any, blocks: Any) -> None:
    lanes = np.empty(_LANES, np.float64)
    for block in range(blocks.size):
        start = block * NORM_BLOCK
        stop = min(start + NORM_BLOCK, vector.size)
        whole = stop - (stop - start) % _LANES
        lanes[:] = 0.0
        # always the same elements in each lane: the rounding is fixed, and the lanes go side by side
        for row in range(start, whole, _LANES):
            part = vector[row : row + _LANES]
            for lane in range(_LANES):
                value = np.float64(part[lane])
                lanes[lane] += value * value
        for i in range(whole, stop):
            value = np.float64(vector[i])
            lanes[i - whole] += value * value
        half = _LANES // 2
        while half:
            for lane in range(half):
                lanes[lane] += lanes[lane + half]
            half //= 2
        blocks[block] = lanes[0]


def square_sums(vector: npt.NDArray[np.float32], blocks: npt.NDArray[np.float64]) -> None:
    """Write the sum of squares of each NORM_BLOCK elements of `vector` to `blocks`, in float64. Pure."""
    _square_sums(vector, blocks)


def num_blocks(size: int) -> int:
    """Blocks of a vector of `size` elements."""
    return -(-size // NORM_BLOCK)


def total(blocks: npt.NDArray[np.float64]) -> float:
    """The exactly rounded sum of non-negative numbers: it does not depend on their order. Pure."""
    return math.fsum(blocks.tolist())


def compile_for(num_sources: int) -> None:
    """Compile, or load what another rank compiled, everything for sums of `num_sources` arrays."""
    for dtype in (np.float32, np.float64):
        sum_into(np.zeros(1, dtype), [np.zeros(1, dtype)] * num_sources)
    square_sums(np.zeros(1, np.float32), np.zeros(1))
