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
        self._segments = [(start, min(start + elements, size)) for start in range(0, size, elements)]
        self.next_tag = first_tag + max(len(self._segments), 2)
        """The first tag that is free for another exchange."""
        self._parts = [slice(part.start, part.stop) for part in (share(size, count, n) for n in range(count))]
        longest = size if form == "all_gather" else len(share(size, count, 0))
        self._pieces = np.empty((count, longest), np.float32)
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
        """Pieces to their owners, which add them up and give everybody the sum."""
        parts, mine = self._parts, self._nodes.mine
        own = parts[mine]
        rooms = [row[: own.stop - own.start] for row in self._pieces]

        def piece(node: int) -> Vector:
            return local(parts[node].start, parts[node].stop, self._own[parts[node]])

        yield from self._in_rounds(piece, rooms, tag=0)
        rooms[mine] = piece(mine)
        sum_into(out[own], rooms)
        yield from self._in_rounds(lambda node: out[own], [out[part] for part in parts], tag=1)

    def _in_rounds(self, give: Callable[[int], Vector], rooms: Sequence[Vector], tag: int) -> Iterator[None]:
        """`give(node)` to every other node, what it gives to `rooms[node]`.

        In each round a node sends to one and receives from one: with all messages at once, so that several send to
        one node at a time, 16 MB between 4 nodes took 1.8 x as long at 1 Gbit/s.
        """
        ranks, mine = self._nodes.ranks, self._nodes.mine
        for step in range(1, len(ranks)):
            to, source = (mine + step) % len(ranks), (mine - step) % len(ranks)
            requests = self._receive_all([(ranks[source], rooms[source])], tag)
            requests += self._send_all([(ranks[to], give(to))], tag)
            yield from _completed(requests)

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
