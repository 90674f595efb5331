"""Sums over the learners: reduce-scatter inside the node, exchange of the shards across nodes, all-gather inside.

Every sum is taken by one rank of a node, in a fixed tree order, so the result is bit-equal on all learners and from
run to run; with power-of-two node sizes it does not even depend on how the learners are divided over nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.ranks import share
from hpcrl.comm.wait import Waiter
from hpcrl.comm.world import LearnerComms

if TYPE_CHECKING:
    from torch import Tensor

_MPI_TYPES = {np.dtype(np.float32): MPI.FLOAT, np.dtype(np.float64): MPI.DOUBLE}


def tree_sum(pieces: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Sum equal-shaped arrays as a balanced binary tree over their order: ((0 + 1) + (2 + 3)) + ... Pure."""
    level = list(pieces)
    while len(level) > 1:
        pairs = [left + right for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


class HierarchicalReducer:
    """Sums over the learners of LearnerComms. Everything here is collective over `comms.group`."""

    def __init__(self, comms: LearnerComms, waiter: Waiter, *, debug: bool = False) -> None:
        """Collective over the learners: agrees on the smallest node, whose size is the number of shards."""
        self._comms = comms
        self._waiter = waiter
        self._debug = debug
        self._sequence = 0
        sizes = comms.group.allgather(comms.node.size)
        self._num_shards = min(sizes)
        self._num_nodes = round(sum(1 / size for size in sizes))
        self.bytes = 0

    def sum_(self, vector: Tensor) -> None:
        """Replace a contiguous 1-D CPU float32/float64 vector by its sum over all learners. Collective."""
        self.sum_array(vector.detach().numpy())

    def sum_array(self, vector: npt.NDArray[Any]) -> None:
        """As `sum_`, for a contiguous 1-D numpy array. Collective."""
        if self._debug:
            self._compare_fingerprint(1, vector.size, vector.dtype.itemsize)
        if self._comms.group.size == 1 or vector.size == 0:
            return
        kind = _MPI_TYPES[vector.dtype]
        counts = [len(share(vector.size, self._num_shards, index)) for index in range(self._num_shards)]
        counts += [0] * (self._comms.node.size - self._num_shards)
        shard = self._sum_inside_node(vector, counts, kind)
        if self._num_nodes > 1 and self._comms.node.rank < self._num_shards:
            shard = self._sum_across_nodes(shard, kind)
        if self._comms.node.size == 1:
            vector[...] = shard
            return
        self._wait(self._comms.node.Iallgatherv([shard, kind], [vector, counts, kind]))

    def any_true(self, flag: bool) -> bool:
        """Whether `flag` is true on any learner: the condition of a branch around a collective. Collective."""
        if self._debug:
            self._compare_fingerprint(2, 1, 4)
        if self._comms.group.size == 1:
            return flag
        mine, result = np.array([flag], np.int32), np.zeros(1, np.int32)
        self._wait(self._comms.group.Iallreduce([mine, MPI.INT32_T], [result, MPI.INT32_T], MPI.MAX))
        return bool(result[0])

    def barrier(self) -> None:
        """Wait, politely and however long it takes, until every learner is here. Collective."""
        if self._debug:
            self._compare_fingerprint(4, 0, 0)
        self._wait(self._comms.group.Ibarrier())

    def broadcast_array(self, vector: npt.NDArray[Any]) -> None:
        """Overwrite every learner's vector by that of role_rank 0. Collective."""
        if self._debug:
            self._compare_fingerprint(3, vector.size, vector.dtype.itemsize)
        self._wait(self._comms.group.Ibcast([vector.view(np.uint8), MPI.BYTE], 0))

    def _sum_inside_node(
        self, vector: npt.NDArray[Any], counts: list[int], kind: MPI.Datatype
    ) -> npt.NDArray[Any]:
        node = self._comms.node
        if node.size == 1:
            return vector
        mine = counts[node.rank]
        pieces = np.empty((node.size, mine), vector.dtype)
        self._wait(node.Ialltoallv([vector, counts, kind], [pieces, [mine] * node.size, kind]))
        self.bytes += vector.nbytes
        return tree_sum(list(pieces))

    def _sum_across_nodes(self, shard: npt.NDArray[Any], kind: MPI.Datatype) -> npt.NDArray[Any]:
        cross = self._comms.cross
        pieces = np.empty((cross.size, shard.size), shard.dtype)
        self._wait(cross.Iallgather([shard, kind], [pieces, kind]))
        self.bytes += shard.nbytes * (cross.size - 1)
        return tree_sum(list(pieces))

    def _compare_fingerprint(self, operation: int, size: int, itemsize: int) -> None:
        group = self._comms.group
        self._sequence += 1
        mine = np.array([operation, size, itemsize, self._sequence], np.int64)
        everyone = np.empty((group.size, 4), np.int64)
        self._wait(group.Iallgather([mine, MPI.INT64_T], [everyone, MPI.INT64_T]))
        for role_rank, other in enumerate(everyone):
            if not np.array_equal(other, everyone[0]):
                raise RuntimeError(
                    f"learner {role_rank} is about to call collective (operation, size, itemsize, number) = "
                    f"{other.tolist()} while learner 0 calls {everyone[0].tolist()}"
                )

    def _wait(self, request: MPI.Request) -> None:
        self._waiter.until(request.Test)
