"""Sums of a few kilobytes: every rank of a node adds up everything, after one round of flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.bell import Bells
from hpcrl.comm.epochs import Epochs, words_nbytes
from hpcrl.comm.kernels import sum_into
from hpcrl.comm.node_order import NodeOrder
from hpcrl.comm.window import Bytes, SharedWindow

Array = npt.NDArray[Any]

SMALL_BYTES = 64 << 10
"""Up to here one round of flags costs more than that every rank reads everything."""
CAPACITY = SMALL_BYTES + 1024
"""Bytes of all arrays of one sum, each rounded up to 64."""
_GIVEN, _SUMMED, _STEPPED = 0, 1, 2
_NUM_WORDS = 3


class SmallSum:
    """Sums over all learners through a window of the node. What is collective is so over the learners.

    Between nodes the first rank of each exchanges the sum of its node and shares the result.
    """

    def __init__(
        self,
        node: MPI.Intracomm,
        nodes: NodeOrder,
        bells: Bells | None,
        wait: Callable[[Callable[[], bool]], None],
    ) -> None:
        """`wait(ready)` returns when `ready()`. Collective over the node."""
        self._nodes = nodes if nodes.num_nodes > 1 else None
        self._wait = wait
        self._rank = node.rank
        head = words_nbytes(_NUM_WORDS)
        self._window = SharedWindow(node, head + 4 * CAPACITY)
        segments = self._window.segments
        self._epochs = Epochs(
            self._window, [segment[:head] for segment in segments], _NUM_WORDS, node.rank, bells
        )
        # two of each: the others may still read the last one; nobody can be two sums ahead
        self._given = [
            [segment[head + CAPACITY * turn :][:CAPACITY] for segment in segments] for turn in range(2)
        ]
        self._summed = [segments[0][head + CAPACITY * turn :][:CAPACITY] for turn in (2, 3)]
        self._received = np.empty((len(nodes.ranks), CAPACITY), np.uint8)
        self._number = 0
        self._steps = 0
        self.sent_bytes = 0
        """Payload of this rank's messages to other nodes so far."""
        node.Barrier()

    def sum(self, *parts: Array) -> None:
        """Replace each 1-D float32 or float64 array by its sum; together at most CAPACITY bytes. Collective."""
        places = _places(parts)
        turn = self._number % 2
        self._number += 1
        given = self._given[turn]
        for part, place in zip(parts, places, strict=True):
            given[self._rank][place].view(part.dtype)[...] = part
        self._epochs.reach(self._number, _GIVEN)
        if self._nodes is not None and self._rank > 0:
            self._wait(lambda: self._epochs.reached(0, self._number, _SUMMED))
            for part, place in zip(parts, places, strict=True):
                part[...] = self._summed[turn][place].view(part.dtype)
            return
        self._wait(lambda: self._epochs.all_reached(self._number, _GIVEN))
        for part, place in zip(parts, places, strict=True):
            sum_into(part, [memory[place].view(part.dtype) for memory in given])
        if self._nodes is not None:
            self._sum_across_nodes(self._nodes, parts, places, self._summed[turn])

    def wait_for_node(self) -> None:
        """Wait until every rank of the node is here; what they stored in any shared window is seen. Collective."""
        self._steps += 1
        self._epochs.reach(self._steps, _STEPPED)
        self._wait(lambda: self._epochs.all_reached(self._steps, _STEPPED))

    def _sum_across_nodes(
        self, nodes: NodeOrder, parts: Sequence[Array], places: Sequence[slice], summed: Bytes
    ) -> None:
        stop = places[-1].stop if places else 0
        own, tag = self._received[nodes.mine, :stop], 0
        for part, place in zip(parts, places, strict=True):
            own[place].view(part.dtype)[...] = part
        requests = [
            nodes.cross.Irecv([self._received[node, :stop], MPI.BYTE], rank, tag)
            for node, rank in nodes.others
        ]
        requests += [nodes.cross.Isend([own, MPI.BYTE], rank, tag) for _, rank in nodes.others]
        self.sent_bytes += stop * len(nodes.others)
        self._wait(lambda: MPI.Request.Testall(requests))
        for part, place in zip(parts, places, strict=True):
            sum_into(part, [row[place].view(part.dtype) for row in self._received])
            summed[place].view(part.dtype)[...] = part
        self._epochs.reach(self._number, _SUMMED)
        self._epochs.wake_others()

    def close(self) -> None:
        """Collective over the node."""
        self._given, self._summed = [], []
        self._window.close()


def _places(parts: Sequence[Array]) -> list[slice]:
    """Where each array lies in a buffer, at multiples of 64 bytes."""
    places, start = [], 0
    for part in parts:
        places.append(slice(start, start + part.nbytes))
        start += -(-part.nbytes // 64) * 64
    return places
