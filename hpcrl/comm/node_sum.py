"""The gradient in the shared memory of a node: each rank adds up its own slice, all read the sums where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm import kernels
from hpcrl.comm.bell import Bells
from hpcrl.comm.epochs import Epochs, words_nbytes
from hpcrl.comm.exchange import Exchange
from hpcrl.comm.ranks import share
from hpcrl.comm.window import PAGE, SharedWindow

Vector = npt.NDArray[np.float32]

FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket is smaller, so that its sum begins early."""
_OVER = object()
_PIECE = 1 << 16
"""Elements that are added up, and then squared while they are in the cache."""


def bucket_ranges(size: int, bucket_bytes: int) -> list[range]:
    """Cut a gradient into buckets from its end, which a backward pass reaches first. Pure.

    Borders lie at multiples of kernels.NORM_BLOCK elements.
    """
    ranges, stop, length = [], size, min(FIRST_BUCKET_BYTES, bucket_bytes)
    while stop > 0:
        start = max(0, stop - length // 4)
        start -= start % kernels.NORM_BLOCK
        ranges.append(range(start, stop))
        stop, length = start, bucket_bytes
    return ranges


def slice_of(bucket: range, parts: int, index: int) -> range:
    """The `index`-th of `parts` consecutive slices of a bucket, whole blocks but for the last; empty from `parts` on.

    Pure.
    """
    if index >= parts:
        return range(bucket.stop, bucket.stop)
    blocks = share(kernels.num_blocks(len(bucket)), parts, index)
    start, stop = (bucket.start + kernels.NORM_BLOCK * edge for edge in (blocks.start, blocks.stop))
    return range(min(start, bucket.stop), min(stop, bucket.stop))


class _Layout:
    """Where what lies in a rank's segment: words and gradient, in the first rank's also sums and sums of squares."""

    def __init__(self, size: int, num_buckets: int) -> None:
        self.words = slice(0, words_nbytes(2 * num_buckets))
        self.gradient = _after(self.words, 4 * size)
        self.sums = _after(self.gradient, 4 * size)
        self.squares = _after(self.sums, 8 * kernels.num_blocks(size))
        self.nbytes, self.nbytes_of_first = int(self.gradient.stop), int(self.squares.stop)


def segment_bytes(size: int, num_buckets: int, rank: int) -> int:
    """Shared memory that one rank of a node gives for a gradient of `size` elements. Pure."""
    layout = _Layout(size, num_buckets)
    return layout.nbytes_of_first if rank == 0 else layout.nbytes


class NodeGradient:
    """A gradient of each rank of a node, and their sum over all learners, in one shared window.

    Collective over the learners: `start` of buckets, in any order, then `finish`; the result may be read until the
    next `start`. `start` and `poll` never wait.
    """

    def __init__(
        self,
        node: MPI.Intracomm,
        bells: Bells | None,
        size: int,
        buckets: Sequence[range],
        num_shards: int,
        exchange_of: Callable[[range], Exchange] | None,
        sum_small: Callable[[npt.NDArray[Any]], None],
        wait: Callable[[Callable[[], bool]], None],
    ) -> None:
        """Collective over the node.

        `num_shards`: slices of each bucket, at most node.size. `exchange_of(elements)`: the exchange of one slice
        across nodes; None where there is one node. `sum_small`: sum of a few float64 numbers over the learners.
        `wait(ready)` returns when `ready()`.
        """
        layout = _Layout(size, len(buckets))
        self._window = SharedWindow(node, segment_bytes(size, len(buckets), node.rank))
        segments = self._window.segments
        words = [segment[layout.words] for segment in segments]
        self._epochs = Epochs(self._window, words, 2 * len(buckets), node.rank, bells)
        self._gradients = [segment[layout.gradient].view(np.float32) for segment in segments]
        self._sums = segments[0][layout.sums].view(np.float32)
        self._squares = segments[0][layout.squares].view(np.float64)
        self.memory = self._gradients[node.rank]
        """float32 [size], this rank's gradient; not to be written from a bucket's `start` to the end of `finish`."""
        self.memory[...] = 0
        self._result = self._sums[:]
        self._result.flags.writeable = False
        self.buckets: tuple[range, ...] = tuple(buckets)
        self._slices = [slice_of(bucket, num_shards, node.rank) for bucket in buckets]
        mine = num_shards > node.rank
        self._exchanges = [exchange_of(own) for own in self._slices] if exchange_of and mine else []
        self._sum_small = sum_small
        self._wait = wait
        self._epoch = 1
        self._started: set[int] = set()
        self._running: dict[int, Iterator[None]] = {}
        self._awaited: list[int] = []
        node.Barrier()

    def start(self, bucket: int, *, compress: bool = False) -> None:
        """This rank's part of `bucket` is complete. Once per gradient; raises RuntimeError the second time."""
        if bucket in self._started:
            raise RuntimeError(f"bucket {bucket} of this gradient has been started already")
        self._started.add(bucket)
        self._epochs.reach(bucket, self._epoch)
        self._running[bucket] = self._sum(bucket, compress)

    def poll(self) -> None:
        """Progress."""
        for bucket, task in list(self._running.items()):
            if next(task, _OVER) is _OVER:
                del self._running[bucket]
                self._epochs.reach(len(self.buckets) + bucket, self._epoch)
                self._awaited.append(bucket)

    def finish(self, extras: npt.NDArray[np.float64], *, compress: bool = False) -> Vector:
        """Start what was not, replace `extras` by their sums, and wait.

        Returns the sum, float32 [size], read-only, one for the node.
        """
        for bucket in range(len(self.buckets)):
            if bucket not in self._started:
                self.start(bucket, compress=compress)
        self._sum_small(extras)
        self._wait(self._finished)
        self._epoch += 1
        self._started.clear()
        return self._result

    def _finished(self) -> bool:
        self.poll()
        while self._awaited and self._epochs.all_reached(len(self.buckets) + self._awaited[-1], self._epoch):
            self._awaited.pop()
        return not self._awaited and not self._running

    def square_sum(self) -> float:
        """Sum of the squares of the result, in float64; equal on all learners and in all node maps. Local."""
        return kernels.total(self._squares)

    def close(self) -> None:
        """Give the memory back: no view of `memory` or `result` may be used afterwards. Collective over the node."""
        self.memory = self._result = self._sums = np.zeros(0, np.float32)
        self._gradients, self._squares = [], np.zeros(0)
        self._window.close()

    def _sum(self, bucket: int, compress: bool) -> Iterator[None]:
        while not self._epochs.all_reached(bucket, self._epoch):
            yield
        own = self._slices[bucket]
        if self._exchanges:
            out = self._sums[own.start : own.stop]
            yield from self._exchanges[bucket].run(partial(self._add_up, own.start), out, compress=compress)
            self._add_squares(own)
            return
        for start in range(own.start, own.stop, _PIECE):
            piece = range(start, min(start + _PIECE, own.stop))
            self._add_up(0, piece.start, piece.stop, self._sums[piece.start : piece.stop])
            self._add_squares(piece)

    def _add_up(self, offset: int, start: int, stop: int, room: Vector) -> Vector:
        """The node's sum of the elements from offset + start to offset + stop, as exchange.Local wants it."""
        sources = [gradient[offset + start : offset + stop] for gradient in self._gradients]
        if len(sources) == 1:
            return sources[0]
        kernels.sum_into(room, sources)
        return room

    def _add_squares(self, piece: range) -> None:
        first = piece.start // kernels.NORM_BLOCK
        blocks = self._squares[first : first + kernels.num_blocks(len(piece))]
        kernels.square_sums(self._sums[piece.start : piece.stop], blocks)


def _after(before: slice, nbytes: int) -> slice:
    """`nbytes` from the next page on."""
    start = -(-before.stop // PAGE) * PAGE
    return slice(start, start + nbytes)
