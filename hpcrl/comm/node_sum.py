"""The gradient in the shared memory of a node: each rank adds up its own slice, all read the sums where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
Extras = npt.NDArray[np.float64]

FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket is smaller, so that its sum begins early."""
_OVER = object()


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


MAX_EXTRAS = 8
"""Numbers that are summed beside the gradient."""
_EXTRA_BYTES = 8 * MAX_EXTRAS


class _Layout:
    """Where what lies in a rank's segment: words, extras and gradient, in the first rank's also sums and squares."""

    def __init__(self, size: int, num_buckets: int) -> None:
        self.words = slice(0, words_nbytes(2 * num_buckets + 1))
        self.extras = [
            slice(self.words.stop + start, self.words.stop + start + _EXTRA_BYTES) for start in (0, 128)
        ]
        self.gradient = _after(self.extras[-1], 4 * size)
        self.sums = _after(self.gradient, 4 * size)
        self.squares = _after(self.sums, 8 * kernels.num_blocks(size))
        self.nbytes, self.nbytes_of_first = int(self.gradient.stop), int(self.squares.stop)


def segment_bytes(size: int, num_buckets: int, rank: int) -> int:
    """Shared memory that one rank of a node gives for a gradient of `size` elements. Pure."""
    layout = _Layout(size, num_buckets)
    return layout.nbytes_of_first if rank == 0 else layout.nbytes


@dataclass(frozen=True, slots=True)
class _Slice:
    """What this rank adds up of one bucket."""

    sources: list[Vector]
    """[rank in node] float32 [elements]"""
    out: Vector
    squares: npt.NDArray[np.float64]
    """float64 [blocks], of the sums of squares"""
    exchange: Exchange | None

    def inside_node(self, start: int, stop: int, room: Vector) -> Vector:
        """The node's sum of some elements of the slice, as exchange.Local wants it."""
        if len(self.sources) == 1:
            return self.sources[0][start:stop]
        kernels.sum_into(room, [source[start:stop] for source in self.sources])
        return room


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
        wait: Callable[[Callable[[], bool]], None],
    ) -> None:
        """`wait(ready)` returns when `ready()`. Collective over the node; `divide` must follow."""
        count = len(buckets)
        layout = _Layout(size, count)
        self._window = SharedWindow(node, segment_bytes(size, count, node.rank))
        segments = self._window.segments
        words = [segment[layout.words] for segment in segments]
        self._epochs = Epochs(self._window, words, 2 * count + 1, node.rank, bells)
        # two of each: the others may still read the last ones
        self._extras = [[segment[place].view(np.float64) for segment in segments] for place in layout.extras]
        self._gradients = [segment[layout.gradient].view(np.float32) for segment in segments]
        self._sums = segments[0][layout.sums].view(np.float32)
        self._squares = segments[0][layout.squares].view(np.float64)
        self.memory = self._gradients[node.rank]
        """float32 [size], this rank's gradient; not to be written from a bucket's `start` to the end of `finish`."""
        self.memory[...] = 0
        self._result = self._sums[:]
        self._result.flags.writeable = False
        self.buckets: tuple[range, ...] = tuple(buckets)
        self._rank = node.rank
        self._wait = wait
        self._slices: list[_Slice] = []
        self._sum_extras: Callable[[Extras], None] | None = None
        self._epoch = 1
        self._started: set[int] = set()
        self._running: dict[int, Iterator[None]] = {}
        self._awaited: list[int] = []
        node.Barrier()

    def divide(
        self,
        num_shards: int,
        exchange_of: Callable[[range], Exchange] | None,
        sum_extras: Callable[[Extras], None] | None,
    ) -> None:
        """Say who adds up what. Local.

        `num_shards`: slices of each bucket, at most the size of the node. Where there are several nodes:
        `exchange_of(elements)`, the exchange of one slice, and `sum_extras`, which sums over all learners.
        """
        self._sum_extras = sum_extras
        for bucket in self.buckets:
            own = slice_of(bucket, num_shards, self._rank)
            part, first = slice(own.start, own.stop), own.start // kernels.NORM_BLOCK
            self._slices.append(
                _Slice(
                    sources=[gradient[part] for gradient in self._gradients],
                    out=self._sums[part],
                    squares=self._squares[first : first + kernels.num_blocks(len(own))],
                    exchange=exchange_of(own) if exchange_of and self._rank < num_shards else None,
                )
            )

    def start(self, bucket: int, *, compress: bool = False) -> None:
        """This rank's part of `bucket` is complete. Once per gradient; raises RuntimeError the second time."""
        if bucket in self._started:
            raise RuntimeError(f"bucket {bucket} of this gradient has been started already")
        self._started.add(bucket)
        self._epochs.reach(self._epoch, bucket)
        self._running[bucket] = self._sum(bucket, compress)

    def poll(self) -> None:
        """Progress."""
        over = [bucket for bucket, task in self._running.items() if next(task, _OVER) is _OVER]
        if not over:
            return
        for bucket in over:
            del self._running[bucket]
        summed = [len(self.buckets) + bucket for bucket in over]
        self._epochs.reach(self._epoch, *summed)
        self._awaited += summed

    def finish(self, extras: Extras, *, compress: bool = False) -> Vector:
        """Start what was not, replace `extras` [at most MAX_EXTRAS] by their sums, and wait.

        Returns the sum, float32 [size], read-only, one for the node.
        """
        count, given = len(self.buckets), self._extras[self._epoch % 2]
        given[self._rank][: extras.size] = extras
        rest = [bucket for bucket in range(count) if bucket not in self._started]
        self._epochs.reach(self._epoch, *rest, 2 * count)
        self._awaited.append(2 * count)
        self._running |= {bucket: self._sum(bucket, compress) for bucket in rest}
        if self._sum_extras is not None:
            self._sum_extras(extras)
        self._wait(self._finished)
        if self._sum_extras is None:
            kernels.sum_into(extras, [row[: extras.size] for row in given])
        self._epoch += 1
        self._started.clear()
        return self._result

    def square_sum(self) -> float:
        """Sum of the squares of the result, in float64; equal on all learners and in all node maps. Local."""
        return kernels.total(self._squares)

    def close(self) -> None:
        """Give the memory back: no view of `memory` or `result` may be used afterwards. Collective over the node."""
        self.memory = self._result = self._sums = np.zeros(0, np.float32)
        self._gradients, self._extras, self._slices = [], [], []
        self._squares = np.zeros(0)
        self._window.close()

    def _finished(self) -> bool:
        self.poll()
        while self._awaited and self._epochs.all_reached(self._epoch, self._awaited[-1]):
            self._awaited.pop()
        return not self._awaited and not self._running

    def _sum(self, bucket: int, compress: bool) -> Iterator[None]:
        while not self._epochs.all_reached(self._epoch, bucket):
            yield
        own = self._slices[bucket]
        if own.exchange is not None:
            yield from own.exchange.run(own.inside_node, own.out, compress=compress)
            kernels.square_sums(own.out, own.squares)
        elif own.out.size:
            kernels.sum_into(own.out, own.sources, own.squares)


def _after(before: slice, nbytes: int) -> slice:
    """`nbytes` from the next page on."""
    start = -(-before.stop // PAGE) * PAGE
    return slice(start, start + nbytes)
