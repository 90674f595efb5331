"""Smaller messages for the exchange of gradient shards across nodes: bf16, int8 with block scales, top-k.

Every node encodes its shard, all nodes get all messages, and every node decodes all of them, its own included, in the
same order: so all hold the same bits. What int8 and top-k leave out of a message is kept as a residual and added to
the next shard (error feedback): what was sent plus the residual is what was given, but for float32 rounding.

A message has a fixed size. Some entries travel in it as they are (`exact`); only the others are compressed. A value
that is not finite is never hidden: the sum is not finite either, on every node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcrl.config import ReductionConfig

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
State = dict[str, npt.NDArray[Any]]

_ALIGNMENT = 64
_SAMPLES = 4096
_SILENT = np.errstate(over="ignore", invalid="ignore")
"""What is not finite is passed on, not warned about."""
BLOCK = 256
"""Entries that share a scale of int8; all loops run over blocks, which stay in the cache."""


class Codec(Protocol):
    """Encodes one shard per update, and sums the messages of all nodes. Everything here is local."""

    nbytes: int
    """Size of every message, a multiple of 64."""

    def encode(self, shard: Floats, out: Bytes) -> None:
        """Write the message for `shard` (contiguous float32 [n]) to `out` (contiguous uint8 [nbytes]).

        Both belong to the caller again when this returns. ValueError where a shape or dtype is another.
        """

    def sum_decoded(self, encoded: Bytes, out: Floats) -> None:
        """Write the sum over the rows of `encoded` (contiguous uint8 [nodes >= 1, nbytes]) to `out` (float32 [n]).

        Rows are added one after the other, so every node that has the same rows gets the same bits.
        """

    def state(self) -> State:
        """What the next `encode` depends on, copied; for checkpoints."""

    def load_state(self, state: State) -> None:
        """Continue from `state`. KeyError or ValueError when it is that of another codec or size."""


def make_codec(reduction: ReductionConfig, size: int, exact: Sequence[tuple[int, int]] = ()) -> Codec | None:
    """Codec for shards of `size` entries, or None where nothing is to be compressed. Local.

    `exact`: sorted, disjoint (start, stop) ranges of the shard that are not compressed. Loads numba and compiles, so
    that the first update that compresses does not wait for it.
    """
    codec: Codec
    match reduction.compression:
        case "none":
            return None
        case "bf16":
            codec = Bf16Codec(size, exact)
        case "int8":
            codec = Int8Codec(size, exact)
        case "topk":
            codec = TopKCodec(size, exact, reduction.topk_fraction)
    messages, zeros = np.zeros((2, codec.nbytes), np.uint8), np.zeros(size, np.float32)
    codec.encode(zeros, messages[0])
    codec.sum_decoded(messages, zeros)
    return codec


class Bf16Codec:
    """Half the bytes: the upper 16 bits of a float32, rounded to nearest even. No residual."""

    def __init__(self, size: int, exact: Sequence[tuple[int, int]] = ()) -> None:
        self._split = _Split(size, exact)
        self._start = self._split.exact_bytes
        self._stop = self._start + 2 * self._split.num_compressed
        self.nbytes = _aligned(self._stop)

    def encode(self, shard: Floats, out: Bytes) -> None:
        """As Codec.encode."""
        from hpcrl.comm import compress_kernels as kernels

        self._split.check(shard, out, (self.nbytes,))
        self._split.copy_exact(shard, out)
        halves = out[self._start : self._stop].view(np.uint16)
        kernels.bf16_encode(shard.view(np.uint32), self._split.blocks, halves)

    def sum_decoded(self, encoded: Bytes, out: Floats) -> None:
        """As Codec.sum_decoded."""
        from hpcrl.comm import compress_kernels as kernels

        self._split.check(out, encoded, (len(encoded), self.nbytes))
        self._split.sum_exact(encoded, out)
        kernels.bf16_sum(encoded.view(np.uint16), self._start // 2, self._split.blocks, out)

    def state(self) -> State:
        """Empty."""
        return {}

    def load_state(self, state: State) -> None:
        """Nothing to load."""


class Int8Codec:
    """A quarter of the bytes: whole steps of 1/127 of the largest magnitude of each block, with error feedback."""

    def __init__(self, size: int, exact: Sequence[tuple[int, int]] = ()) -> None:
        self._split = _Split(size, exact)
        self._residual = np.zeros(size, np.float32)
        self._scales = self._split.exact_bytes
        self._start = self._scales + 4 * len(self._split.blocks)
        self._stop = self._start + self._split.num_compressed
        self.nbytes = _aligned(self._stop)

    def encode(self, shard: Floats, out: Bytes) -> None:
        """As Codec.encode. A block that is not finite sends NaN and keeps the residual it had."""
        from hpcrl.comm import compress_kernels as kernels

        self._split.check(shard, out, (self.nbytes,))
        self._split.copy_exact(shard, out)
        scales = out[self._scales : self._start].view(np.float32)
        steps = out[self._start : self._stop].view(np.int8)
        kernels.int8_encode(shard, self._residual, self._split.blocks, scales, steps)

    def sum_decoded(self, encoded: Bytes, out: Floats) -> None:
        """As Codec.sum_decoded."""
        from hpcrl.comm import compress_kernels as kernels

        self._split.check(out, encoded, (len(encoded), self.nbytes))
        self._split.sum_exact(encoded, out)
        scales = encoded[:, self._scales : self._start].view(np.float32)
        kernels.int8_sum(scales, encoded.view(np.int8), self._start, self._split.blocks, out)

    def state(self) -> State:
        """residual: float32 [n], zero where entries are exact."""
        return {"residual": self._residual.copy()}

    def load_state(self, state: State) -> None:
        """As Codec.load_state."""
        _load_residual(self._residual, state)


class TopKCodec:
    """The largest entries and their positions, with error feedback: 8 bytes for each of ceil(fraction * entries).

    One pass over the shard collects the entries above a threshold that is estimated from a sample; these are then
    cut down to the exact number, lower positions first among equals. Where the estimate was too high, fewer are sent;
    they are the largest all the same.
    """

    def __init__(self, size: int, exact: Sequence[tuple[int, int]], fraction: float) -> None:
        if size > np.iinfo(np.int32).max:
            raise ValueError(f"a shard of {size} entries has positions beyond 32 bits; use smaller shards")
        self._split = _Split(size, exact)
        self._residual = np.zeros(size, np.float32)
        self._candidates = np.empty(self._split.num_compressed, np.int32)
        self._capacity = math.ceil(fraction * self._split.num_compressed)
        self._sample = self._split.sample(_SAMPLES)
        # two standard deviations deeper than the fraction, so that mostly enough entries pass
        expected = fraction * self._sample.size
        self._depth = min(math.ceil(expected + 2 * math.sqrt(expected)), self._sample.size)
        self._count = self._split.exact_bytes
        self._positions = self._count + 4
        self._values = self._positions + 4 * self._capacity
        self.nbytes = _aligned(self._values + 4 * self._capacity)

    @_SILENT
    def encode(self, shard: Floats, out: Bytes) -> None:
        """As Codec.encode. A shard that is not finite sends only that fact; its finite entries wait as residual."""
        from hpcrl.comm import compress_kernels as kernels

        self._split.check(shard, out, (self.nbytes,))
        self._split.copy_exact(shard, out)
        residual = self._residual
        threshold = self._threshold(shard)
        count = kernels.topk_sweep(shard, residual, self._split.blocks, threshold, self._candidates)
        where = self._candidates[:count]
        totals = residual[where] + shard[where]
        finite = np.isfinite(totals)
        if not finite.all():
            residual[where[finite]] = totals[finite]
            out[self._count :][:4].view(np.int32)[0] = -1
            return
        sent = _largest(np.abs(totals), self._capacity)
        residual[where] = np.where(sent, np.float32(0), totals)
        where, totals = where[sent], totals[sent]
        out[self._count :][:4].view(np.int32)[0] = where.size
        out[self._positions :][: where.nbytes].view(np.int32)[...] = where
        out[self._values :][: totals.nbytes].view(np.float32)[...] = totals

    @_SILENT
    def sum_decoded(self, encoded: Bytes, out: Floats) -> None:
        """As Codec.sum_decoded. NaN in all compressed entries when the shard of some node was not finite."""
        self._split.check(out, encoded, (len(encoded), self.nbytes))
        counts = [int(row[self._count :][:4].view(np.int32)[0]) for row in encoded]
        out[...] = np.nan if min(counts) < 0 else 0
        for row, count in zip(encoded, counts, strict=True):
            where = row[self._positions :][: 4 * max(count, 0)].view(np.int32)
            out[where] += row[self._values :][: where.nbytes].view(np.float32)
        self._split.sum_exact(encoded, out)

    def state(self) -> State:
        """residual: float32 [n], zero where entries are exact."""
        return {"residual": self._residual.copy()}

    def load_state(self, state: State) -> None:
        """As Codec.load_state."""
        _load_residual(self._residual, state)

    def _threshold(self, shard: Floats) -> np.int32:
        """Bits of the magnitude that about capacity entries reach; above 0, so that zeros are never sent."""
        if self._sample.size == 0:
            return np.int32(1)
        totals = self._residual[self._sample] + shard[self._sample]
        magnitudes = np.abs(totals).view(np.int32)
        place = magnitudes.size - self._depth
        return np.int32(max(np.partition(magnitudes, place)[place], 1))


class _Split:
    """Which entries of a shard are exact, and in which blocks the others are compressed."""

    def __init__(self, size: int, exact: Sequence[tuple[int, int]]) -> None:
        edges = [0, *(edge for pair in exact for edge in pair), size]
        if edges != sorted(edges):
            raise ValueError(f"exact ranges {list(exact)} are not sorted, disjoint and inside [0, {size})")
        self.size = size
        self.exact = np.concatenate([np.arange(start, stop) for start, stop in [(0, 0), *exact]])
        """int64 [exact entries]: their positions."""
        self.exact_bytes = 4 * self.exact.size
        """They are the first bytes of a message."""
        spans = list(zip(edges[::2], edges[1::2], strict=True))
        blocks = [(i, min(i + BLOCK, stop)) for start, stop in spans for i in range(start, stop, BLOCK)]
        self.blocks = np.array(blocks, np.int64).reshape(-1, 2)
        """int64 [blocks, 2]: start and stop of up to BLOCK neighbors; none reaches over an exact range."""
        self.num_compressed = size - self.exact.size

    def check(self, shard: Floats, message: Bytes, shape: tuple[int, ...]) -> None:
        """Raise ValueError unless the arrays are what compiled loops, which check nothing, may run over."""
        for array, dtype, wanted in ((shard, np.float32, (self.size,)), (message, np.uint8, shape)):
            if array.dtype != dtype or array.shape != wanted or not array.flags.c_contiguous:
                found = f"{array.dtype} {list(array.shape)}, contiguous: {array.flags.c_contiguous}"
                raise ValueError(f"expected contiguous {np.dtype(dtype)} {list(wanted)}, got {found}")

    def copy_exact(self, shard: Floats, message: Bytes) -> None:
        message[: self.exact_bytes].view(np.float32)[...] = shard[self.exact]

    @_SILENT
    def sum_exact(self, encoded: Bytes, out: Floats) -> None:
        values = encoded[:, : self.exact_bytes].view(np.float32)
        total = values[0].copy()
        for row in values[1:]:
            total += row
        out[self.exact] = total

    def sample(self, count: int) -> npt.NDArray[np.int64]:
        """Positions of up to `count` compressed entries, the same ones on every call; all if there are no more.

        At random rather than at equal distances, which might all fall into one column of a matrix.
        """
        positions = np.delete(np.arange(self.size), self.exact)
        chosen = np.random.default_rng(0).choice(positions, min(count, positions.size), replace=False)
        return np.sort(chosen)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _largest(magnitudes: Floats, count: int) -> npt.NDArray[np.bool_]:
    """Mask of the `count` largest, earlier ones first among equals; of all if there are no more than `count`."""
    if magnitudes.size <= count:
        return np.ones(magnitudes.size, np.bool_)
    place = magnitudes.size - count
    smallest = np.partition(magnitudes, place)[place]
    chosen: npt.NDArray[np.bool_] = magnitudes > smallest
    equal = np.flatnonzero(magnitudes == smallest)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return chosen


def _load_residual(residual: Floats, state: State) -> None:
    loaded = state["residual"]
    if loaded.shape != residual.shape:
        raise ValueError(f"a residual of {loaded.size} entries is not for a shard of {residual.size}")
    residual[...] = loaded
