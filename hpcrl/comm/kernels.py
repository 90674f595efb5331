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

_NO_SQUARES = np.zeros(0)

_compile = numba.njit(cache=True, nogil=True)


@_compile
def _square_sum(block: Any, lanes: Any) -> float:
    whole = block.size - block.size % _LANES
    lanes[:] = 0.0
    # always the same elements in each lane: the rounding is fixed, and the lanes go side by side
    for row in range(0, whole, _LANES):
        part = block[row : row + _LANES]
        for lane in range(_LANES):
            value = np.float64(part[lane])
            lanes[lane] += value * value
    rest = block[whole:]
    for lane in range(rest.size):
        value = np.float64(rest[lane])
        lanes[lane] += value * value
    half = _LANES // 2
    while half:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return float(lanes[0])


@_compile
def _sum2(out: Any, squares: Any, a_: Any, b_: Any) -> None:
    lanes = np.empty(_LANES, np.float64)
    for start in range(0, out.size, NORM_BLOCK):
        block = slice(start, min(start + NORM_BLOCK, out.size))
        o, a, b = out[block], a_[block], b_[block]
        for i in range(o.size):
            o[i] = a[i] + b[i]
        if squares.size:
            squares[start // NORM_BLOCK] = _square_sum(o, lanes)


@_compile
def _sum3(out: Any, squares: Any, a_: Any, b_: Any, c_: Any) -> None:
    lanes = np.empty(_LANES, np.float64)
    for start in range(0, out.size, NORM_BLOCK):
        block = slice(start, min(start + NORM_BLOCK, out.size))
        o, a, b, c = out[block], a_[block], b_[block], c_[block]
        for i in range(o.size):
            o[i] = (a[i] + b[i]) + c[i]
        if squares.size:
            squares[start // NORM_BLOCK] = _square_sum(o, lanes)


@_compile
def _sum4(out: Any, squares: Any, a_: Any, b_: Any, c_: Any, d_: Any) -> None:
    lanes = np.empty(_LANES, np.float64)
    for start in range(0, out.size, NORM_BLOCK):
        block = slice(start, min(start + NORM_BLOCK, out.size))
        o, a, b, c, d = out[block], a_[block], b_[block], c_[block], d_[block]
        for i in range(o.size):
            o[i] = (a[i] + b[i]) + (c[i] + d[i])
        if squares.size:
            squares[start // NORM_BLOCK] = _square_sum(o, lanes)


@_compile
def _sum5(out: Any, squares: Any, a_: Any, b_: Any, c_: Any, d_: Any, e_: Any) -> None:
    lanes = np.empty(_LANES, np.float64)
    for start in range(0, out.size, NORM_BLOCK):
        block = slice(start, min(start + NORM_BLOCK, out.size))
        o, a, b, c, d, e = out[block], a_[block], b_[block], c_[block], d_[block], e_[block]
        for i in range(o.size):
            o[i] = ((a[i] + b[i]) + (c[i] + d[i])) + e[i]
        if squares.size:
            squares[start // NORM_BLOCK] = _square_sum(o, lanes)


@_compile
def _sum6(out: Any, squares: Any, a_: Any, b_: Any, c_: Any, d_: Any, e_: Any, f_: Any) -> None:
    lanes = np.empty(_LANES, np.float64)
    for start in range(0, out.size, NORM_BLOCK):
        block = slice(start, min(start + NORM_BLOCK, out.size))
        o, a, b, c, d, e, f = out[block], a_[block], b_[block], c_[block], d_[block], e_[block], f_[block]
        for i in range(o.size):
            o[i] = ((a[i] + b[i]) + (c[i] + d[i])) + (e[i] + f[i])
        if squares.size:
            squares[start // NORM_BLOCK] = _square_sum(o, lanes)


@_compile
def _sum7(out: Any, squares: Any, a_: Any, b_: Any, c_: Any, d_: Any, e_: Any, f_: Any, g_: Any) -> None:
    lanes = np.empty(_LANES, np.float64)
    for start in range(0, out.size, NORM_BLOCK):
        block = slice(start, min(start + NORM_BLOCK, out.size))
        o, a, b, c, d, e, f, g = (
            out[block],
            a_[block],
            b_[block],
            c_[block],
            d_[block],
            e_[block],
            f_[block],
            g_[block],
        )
        for i in range(o.size):
            o[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + g[i])
        if squares.size:
            squares[start // NORM_BLOCK] = _square_sum(o, lanes)


@_compile
def _sum8(
    out: Any, squares: Any, a_: Any, b_: Any, c_: Any, d_: Any, e_: Any, f_: Any, g_: Any, h_: Any
) -> None:
    lanes = np.empty(_LANES, np.float64)
    for start in range(0, out.size, NORM_BLOCK):
        block = slice(start, min(start + NORM_BLOCK, out.size))
        o, a, b, c, d, e, f, g, h = (
            out[block],
            a_[block],
            b_[block],
            c_[block],
            d_[block],
            e_[block],
            f_[block],
            g_[block],
            h_[block],
        )
        for i in range(o.size):
            o[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]))
        if squares.size:
            squares[start // NORM_BLOCK] = _square_sum(o, lanes)


_SUMS: dict[int, Any] = {2: _sum2, 3: _sum3, 4: _sum4, 5: _sum5, 6: _sum6, 7: _sum7, 8: _sum8}


def sum_into(
    out: npt.NDArray[Any],
    sources: Sequence[npt.NDArray[Any]],
    squares: npt.NDArray[np.float64] = _NO_SQUARES,
) -> None:
    """Write the sum of equal-shaped 1-D arrays to `out`, in the order of `message_sum.tree_sum`. Pure.

    `out` may be one of the sources. float32 or float64, all of one kind. `squares` [num_blocks(out.size)]: gets the
    sums of squares of the result's blocks, while these are in the cache.
    """
    if len(sources) > _WIDTH:
        _sum_many(out, sources)
    elif len(sources) > 1:
        _SUMS[len(sources)](out, squares, *sources)
        return
    else:
        np.copyto(out, sources[0])
    if squares.size:
        square_sums(out, squares)


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
def _square_sums(vector: Any, squares: Any) -> None:
    lanes = np.empty(_LANES, np.float64)
    for block in range(squares.size):
        start = block * NORM_BLOCK
        squares[block] = _square_sum(vector[start : start + NORM_BLOCK], lanes)


def square_sums(vector: npt.NDArray[np.float32], squares: npt.NDArray[np.float64]) -> None:
    """Write the sum of squares of each NORM_BLOCK elements of `vector` to `squares`, in float64. Pure."""
    _square_sums(vector, squares)


def num_blocks(size: int) -> int:
    """Blocks of a vector of `size` elements."""
    return -(-size // NORM_BLOCK)


def total(squares: npt.NDArray[np.float64]) -> float:
    """The exactly rounded sum of non-negative numbers: it does not depend on their order. Pure."""
    return math.fsum(squares.tolist())


def compile_for(num_sources: int) -> None:
    """Compile, or load what another rank compiled, everything for sums of `num_sources` arrays."""
    for dtype in (np.float32, np.float64):
        sum_into(np.zeros(1, dtype), [np.zeros(1, dtype)] * num_sources)
    square_sums(np.zeros(1, np.float32), np.zeros(1))
