"""Sum of one shard over the nodes: each node's part to every node, or pieces to their owners and the sums to all.

Both forms add in the order of the nodes, as a tree, so they have the same bits. An exchange is a generator that
yields while it waits; several run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.kernels import sum_into
from hpcrl.comm.node_order import NodeOrder
from hpcrl.comm.ranks import share

if TYPE_CHECKING:
    from hpcrl.comm.compress import Codec

Form = Literal["all_gather", "two_phase"]
Vector = npt.NDArray[np.float32]
Local = Callable[[int, int, Vector], Vector]
"""(start, stop, room) -> the node's sum of these elements of the shard: `room`, filled, or other memory, which stays
as it is until the exchange is over."""

SEGMENT_BYTES = 512 << 10
"""Large enough that a message's own cost vanishes, small enough that sums and messages overlap."""


def cheapest_form(num_nodes: int, kept_fraction: float) -> tuple[Form, bool]:
    """The form with the least bytes through a node's network card, and whether to compress in it. Pure.

    `kept_fraction`: encoded bytes / bytes; 1 without compression. All-gather moves that times (nodes - 1) vectors,
    two-phase, which is always exact, 2 (nodes - 1) / nodes. At equality the form with fewer rounds.
    """
    compress = kept_fraction < 1 and kept_fraction * num_nodes < 2
    return ("all_gather" if num_nodes <= 2 or compress else "two_phase"), compress


class Exchange:
    """The exchange of one shard. Point-to-point between the learners of equal rank in their nodes."""

    def __init__(
        self, nodes: NodeOrder, size: int, form: Form, first_tag: int, codec: Codec | None = None
    ) -> None:
        """`size` elements. Uses tags from `first_tag` to `next_tag` - 1. With `codec`, `all_gather` can compress."""
        self._nodes = nodes
        self._size = size
        self._form = form
        self._tag = first_tag
        self.codec = codec
        self.sent_bytes = 0
        """Payload of all messages of this rank so far."""
        count, elements = len(nodes.ranks), SEGMENT_BYTES // 4
        length = elements * (count if form == "two_phase" else 1)
        self._segments = [(start, min(start + length, size)) for start in range(0, size, length)]
        self.next_tag = first_tag + max(2 * len(self._segments), 1)
        """The first tag that is free for another exchange."""
        self._pieces = np.empty((count, min(size, elements * len(self._segments))), np.float32)
        self._own = np.empty(size if form == "two_phase" or codec else 0, np.float32)
        self._encoded = np.empty((count, codec.nbytes if codec else 0), np.uint8)

    def run(self, local: Local, out: Vector, *, compress: bool = False) -> Iterator[None]:
        """Write the sum over all nodes to `out` [size]; yields while messages are under way.

        The same arguments on every node, up to the values. `out` may be read when the generator is exhausted.
        """
        if self._size == 0:
            return iter(())
        if compress and self.codec is not None:
            return self._compressed(self.codec, local, out)
        return self._two_phase(local, out) if self._form == "two_phase" else self._all_gather(local, out)

    def _all_gather(self, local: Local, out: Vector) -> Iterator[None]:
        pieces, mine = self._pieces, self._nodes.mine
        arrivals = [
            self._receive_all([(rank, pieces[node, a:b]) for node, rank in self._nodes.others], index)
            for index, (a, b) in enumerate(self._segments)
        ]
        own: list[Vector] = []
        sends: list[MPI.Request] = []
        summed = 0
        while summed < len(self._segments):
            if len(own) < len(self._segments):
                a, b = self._segments[len(own)]
                own.append(local(a, b, pieces[mine, a:b]))
                sends += self._send_all([(rank, own[-1]) for _, rank in self._nodes.others], len(own) - 1)
            if summed < len(own) and MPI.Request.Testall(arrivals[summed]):
                a, b = self._segments[summed]
                sources = [own[summed] if node == mine else pieces[node, a:b] for node in range(len(pieces))]
                sum_into(out[a:b], sources)
                summed += 1
            else:
                yield
        yield from _completed(sends)

    def _two_phase(self, local: Local, out: Vector) -> Iterator[None]:
        phases = [self._two_phase_segment(index, local, out) for index in range(len(self._segments))]
        while phases:
            phases = [phase for phase in phases if next(phase, "over") is None]
            yield

    def _two_phase_segment(self, index: int, local: Local, out: Vector) -> Iterator[None]:
        """Pieces to their owners, which add them up and give everybody the sum."""
        nodes, (a, b) = self._nodes, self._segments[index]
        cuts = [share(b - a, len(nodes.ranks), node) for node in range(len(nodes.ranks))]
        parts = [slice(a + cut.start, a + cut.stop) for cut in cuts]
        mine, own = nodes.mine, parts[nodes.mine]
        first = index * (SEGMENT_BYTES // 4)
        rooms = [row[first : first + own.stop - own.start] for row in self._pieces]
        arrivals = self._receive_all([(rank, rooms[node]) for node, rank in nodes.others], 2 * index)
        sums = self._receive_all([(rank, out[parts[node]]) for node, rank in nodes.others], 2 * index + 1)
        yield
        whole = local(a, b, self._own[a:b])
        sends = self._send_all([(rank, whole[cuts[node]]) for node, rank in nodes.others], 2 * index)
        yield from _completed(arrivals)
        rooms[mine] = whole[cuts[mine].start : cuts[mine].stop]
        sum_into(out[own], rooms)
        sends += self._send_all([(rank, out[own]) for _, rank in nodes.others], 2 * index + 1)
        yield from _completed(sums + sends)

    def _compressed(self, codec: Codec, local: Local, out: Vector) -> Iterator[None]:
        encoded, mine = self._encoded, self._nodes.mine
        arrivals = self._receive_all([(rank, encoded[node]) for node, rank in self._nodes.others], 0)
        codec.encode(local(0, self._size, self._own), encoded[mine])
        sends = self._send_all([(rank, encoded[mine]) for _, rank in self._nodes.others], 0)
        yield from _completed(arrivals)
        codec.sum_decoded(encoded, out)
        yield from _completed(sends)

    def _send_all(self, messages: Sequence[tuple[int, npt.NDArray[Any]]], tag: int) -> list[MPI.Request]:
        self.sent_bytes += sum(array.nbytes for _, array in messages)
        return [self._nodes.cross.Isend(_bytes(array), rank, self._tag + tag) for rank, array in messages]

    def _receive_all(self, messages: Sequence[tuple[int, npt.NDArray[Any]]], tag: int) -> list[MPI.Request]:
        return [self._nodes.cross.Irecv(_bytes(array), rank, self._tag + tag) for rank, array in messages]


def _completed(requests: list[MPI.Request]) -> Iterator[None]:
    while not MPI.Request.Testall(requests):
        yield


def _bytes(array: npt.NDArray[Any]) -> list[Any]:
    return [array.view(np.uint8), MPI.BYTE]
