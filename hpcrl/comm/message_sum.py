"""Sums by MPI messages alone: portable, and what the sums in shared memory are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.exchange import Exchange
from hpcrl.comm.node_order import NodeOrder
from hpcrl.comm.ranks import share

Array = npt.NDArray[Any]

MPI_TYPES = {np.dtype(np.float32): MPI.FLOAT, np.dtype(np.float64): MPI.DOUBLE}


def tree_sum(pieces: Sequence[Array]) -> Array:
    """Sum equal-shaped arrays as a balanced binary tree over their order: ((0 + 1) + (2 + 3)) + ... Pure."""
    level = list(pieces)
    while len(level) > 1:
        pairs = [left + right for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


class MessageSum:
    """Reduce-scatter inside the node, exchange of the shards across nodes, all-gather inside.

    Every sum is taken by one rank of a node, which gives it to the others: the result is bit-equal on all.
    """

    def __init__(
        self,
        node: MPI.Intracomm,
        nodes: NodeOrder,
        wait: Callable[[Callable[[], bool]], None],
    ) -> None:
        """`wait(ready)` returns when `ready()`. Local."""
        self._node = node
        self._nodes = nodes
        self._num_shards = nodes.smallest
        self._wait = wait
        self.sent_bytes = 0
        """Payload of this rank's part of all messages so far, but for those of an exchange."""

    def shard(self, size: int) -> range:
        """Elements of a vector of `size` that this rank adds up; none on the extra ranks of a larger node."""
        if self._node.rank >= self._num_shards:
            return range(0)
        return share(size, self._num_shards, self._node.rank)

    def sum_array(self, vector: Array, exchange: Exchange | None = None, *, compress: bool = False) -> None:
        """Replace a contiguous 1-D float32 or float64 vector by its sum. Collective over the learners.

        `exchange`: of `shard(vector.size)` elements; without it the shards cross in one message per node.
        """
        if vector.size == 0:
            return
        kind = MPI_TYPES[vector.dtype]
        counts = [len(share(vector.size, self._num_shards, index)) for index in range(self._num_shards)]
        counts += [0] * (self._node.size - self._num_shards)
        shard = self._inside_node(vector, counts, kind)
        if self._node.rank < self._num_shards and self._nodes.num_nodes > 1:
            shard = self._across_nodes(shard, kind, exchange, compress)
        if self._node.size == 1:
            vector[...] = shard
            return
        self._finish(self._node.Iallgatherv([shard, kind], [vector, counts, kind]))

    def _inside_node(self, vector: Array, counts: list[int], kind: MPI.Datatype) -> Array:
        node = self._node
        if node.size == 1:
            return vector
        mine = counts[node.rank]
        pieces = np.empty((node.size, mine), vector.dtype)
        self._finish(node.Ialltoallv([vector, counts, kind], [pieces, [mine] * node.size, kind]))
        self.sent_bytes += vector.nbytes
        return tree_sum(list(pieces))

    def _across_nodes(
        self, shard: Array, kind: MPI.Datatype, exchange: Exchange | None, compress: bool
    ) -> Array:
        if exchange is None:
            cross = self._nodes.cross
            pieces = np.empty((cross.size, shard.size), shard.dtype)
            self._finish(cross.Iallgather([shard, kind], [pieces, kind]))
            self.sent_bytes += shard.nbytes * (cross.size - 1)
            return tree_sum([pieces[rank] for rank in self._nodes.ranks])
        result = np.empty_like(shard)
        running = exchange.run(lambda start, stop, room: shard[start:stop], result, compress=compress)
        self._wait(lambda: next(running, "over") == "over")
        return result

    def _finish(self, request: MPI.Request) -> None:
        self._wait(request.Test)
