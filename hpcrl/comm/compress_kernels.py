"""The loops behind `compress`, compiled. Import late: numba takes seconds to load.

`blocks` (int64 [blocks, 2]: start, stop) names the entries of a shard to work on, at most BLOCK at a time so that what
one loop wrote is still in the cache for the next. Compressed entries lie side by side in a message; `at` counts them.
The loops are split and write through short slices because that is the form the compiler vectorizes.

Magnitudes are compared as the bits of a float32 without its sign: these have the order of the absolute values, with
infinity and then NaN above all finite ones, and integer maxima vectorize where float maxima do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from hpcrl.comm.compress import BLOCK

Floats = npt.NDArray[np.float32]
Blocks = npt.NDArray[np.int64]

MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITY = np.int32(0x7F800000)
ROUND_TO_INTEGER = np.float32(1.5 * 2**23)
"""Added and taken away again, it rounds a small float32 to the nearest integer, ties to even."""
SMALLEST_SCALE = np.float32(2**-126)
LARGEST_SCALE = np.nextafter(np.finfo(np.float32).max / np.float32(127), np.float32(0))
"""127 times this is finite; 127 times the quotient itself rounds to infinity."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(function: Function) -> Function:
    return cast(Function, numba.njit(cache=True)(function))


@_compiled
def bf16_encode(bits: npt.NDArray[np.uint32], blocks: Blocks, halves: npt.NDArray[np.uint16]) -> None:
    """Upper halves of the float32 `bits`, rounded to nearest even; NaN stays NaN."""
    at = 0
    for b in range(blocks.shape[0]):
        given = bits[blocks[b, 0] : blocks[b, 1]]
        sent = halves[at : at + given.size]
        for i in range(given.size):
            x = given[i]
            rounded = (x + np.uint32(0x7FFF) + ((x >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            quiet_nan = (x >> np.uint32(16)) | np.uint32(0x40)
            sent[i] = quiet_nan if (x & np.uint32(MAGNITUDE)) > np.uint32(INFINITY) else rounded
        at += given.size


@_compiled
def bf16_sum(halves: npt.NDArray[np.uint16], offset: int, blocks: Blocks, out: Floats) -> None:
    """Sum over rows of `halves` [nodes, uint16s of a message] from column `offset` on, first row first."""
    at = offset
    for b in range(blocks.shape[0]):
        total = out[blocks[b, 0] : blocks[b, 1]]
        for node in range(halves.shape[0]):
            sent = halves[node, at : at + total.size]
            if node == 0:
                for i in range(total.size):
                    total[i] = np.uint32(np.uint32(sent[i]) << np.uint32(16)).view(np.float32)
            else:
                for i in range(total.size):
                    total[i] += np.uint32(np.uint32(sent[i]) << np.uint32(16)).view(np.float32)
        at += total.size


@_compiled
def int8_encode(
    shard: Floats, residual: Floats, blocks: Blocks, scales: Floats, steps: npt.NDArray[np.int8]
) -> None:
    """Send residual + shard in whole steps of a scale per block; what rounding leaves is the new residual.

    A block that is not finite sends NaN and leaves its residual alone; one too small for a normal scale waits there.
    """
    total = np.empty(BLOCK, np.float32)
    bits = total.view(np.int32)
    at = 0
    for b in range(blocks.shape[0]):
        given = shard[blocks[b, 0] : blocks[b, 1]]
        kept = residual[blocks[b, 0] : blocks[b, 1]]
        sent = steps[at : at + given.size]
        at += given.size
        for i in range(given.size):
            total[i] = kept[i] + given[i]
        largest = np.int32(0)
        for i in range(given.size):
            largest = max(largest, bits[i] & MAGNITUDE)
        scale = min(np.int32(largest).view(np.float32) / np.float32(127), LARGEST_SCALE)
        if largest >= INFINITY:
            scales[b] = np.float32(np.nan)
            sent[:] = 0
        elif scale < SMALLEST_SCALE:
            scales[b] = np.float32(0)
            sent[:] = 0
            for i in range(given.size):
                kept[i] = total[i]
        else:
            scales[b] = scale
            per_scale = np.float32(1) / scale
            for i in range(given.size):
                step = (total[i] * per_scale + ROUND_TO_INTEGER) - ROUND_TO_INTEGER
                sent[i] = np.int32(step)
                kept[i] = total[i] - step * scale


@_compiled
def int8_sum(scales: Floats, steps: npt.NDArray[np.int8], offset: int, blocks: Blocks, out: Floats) -> None:
    """Sum over rows of `scales` [nodes, blocks] and `steps` [nodes, bytes of a message], first row first."""
    at = offset
    for b in range(blocks.shape[0]):
        total = out[blocks[b, 0] : blocks[b, 1]]
        for node in range(steps.shape[0]):
            sent = steps[node, at : at + total.size]
            scale = scales[node, b]
            if node == 0:
                for i in range(total.size):
                    total[i] = np.float32(sent[i]) * scale
            else:
                for i in range(total.size):
                    total[i] += np.float32(sent[i]) * scale
        at += total.size


@_compiled
def topk_sweep(
    shard: Floats, residual: Floats, blocks: Blocks, threshold: np.int32, candidates: npt.NDArray[np.int32]
) -> int:
    """Add the shard to the residual, except where the sum reaches `threshold` (bits of a magnitude).

    Those entries keep their residual; their positions are written to `candidates`, ascending, and counted.
    """
    total = np.empty(BLOCK, np.float32)
    bits = total.view(np.int32)
    count = 0
    for b in range(blocks.shape[0]):
        given = shard[blocks[b, 0] : blocks[b, 1]]
        kept = residual[blocks[b, 0] : blocks[b, 1]]
        for i in range(given.size):
            total[i] = kept[i] + given[i]
        largest = np.int32(0)
        for i in range(given.size):
            largest = max(largest, bits[i] & MAGNITUDE)
        if largest < threshold:
            for i in range(given.size):
                kept[i] = total[i]
        else:
            for i in range(given.size):
                if bits[i] & MAGNITUDE >= threshold:
                    candidates[count] = blocks[b, 0] + i
                    count += 1
                else:
                    kept[i] = total[i]
    return count
