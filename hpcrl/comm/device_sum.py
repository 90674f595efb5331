"""Gradients that are tensors, on a GPU or not, summed through torch.distributed: the legs of the sums in host memory.

Reduce-scatter inside the node, all-gather of the shards across nodes, all-gather inside the node. The reduce-scatter is
an all-to-all and a sum here, and so is the exchange: both are taken in the tree order of `comm.reduce`, whatever order
the backend would take, so results have the same bits on all learners, from run to run, and as sums in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from hpcrl.comm.groups import LearnerComms
from hpcrl.comm.node_order import NodeOrder, find_node_order
from hpcrl.comm.process_groups import ProcessGroups, all_gather
from hpcrl.comm.reduce import HierarchicalReducer
from hpcrl.comm.wait import Waiter
from hpcrl.config.hops import Timed


class DeviceReducer:
    """Sums over the learners for an algorithm whose gradient lies on a device; small sums are taken in host memory.

    Everything here is collective over the learners but for what is said to be local.
    """

    def __init__(
        self,
        comms: LearnerComms,
        host: HierarchicalReducer,
        waiter: Waiter,
        device: torch.device,
        timeout_s: float = 600.0,
        timed: Timed = nullcontext,
    ) -> None:
        """Blocking. `host` is closed by the caller, after this one. `timeout_s`: of a sum of gradients."""
        self._comms = comms
        self._host = host
        self._device = device
        self._nodes = find_node_order(comms)
        self._groups: ProcessGroups | None = None
        if comms.group.size > 1:
            # nobody rings a bell when a tensor has come
            plain = waiter.with_alarm(None)
            self._groups = ProcessGroups(comms, self._nodes, plain, device, timeout_s)
        self._gradient: DeviceGradient | None = None
        self.extra_sums: npt.NDArray[np.float64] = np.zeros(0)
        """float64, the sums of the extras of the last `finish`"""
        self._timed = timed

    @property
    def description(self) -> str:
        """One sentence for the log. Local."""
        if self._groups is None:
            return f"one learner, on {self._device}: nothing to sum"
        count = self._nodes.num_nodes
        return (
            f"gradients of {self._comms.group.size} learners on {count} node{'s' * (count > 1)}, on "
            f"{self._device.type}: by torch.distributed ({self._groups.backend})"
        )

    def sum_(self, vector: Tensor) -> None:
        """Replace a contiguous 1-D float32 or float64 vector, wherever it lies, by its sum over all learners."""
        summed = vector.detach().cpu()
        self._host.sum_(summed)
        if vector.device.type != "cpu":
            vector.copy_(summed)

    def open_gradient(self, size: int, exact: Sequence[range] = ()) -> Tensor:
        """This learner's gradient, float32 [size] on its device, at first zero. Local.

        With the same size the memory is the same. It belongs to this learner except during `finish`. `exact` is
        without meaning: nothing is compressed.
        """
        if self._gradient is None or self._gradient.memory.numel() != size:
            self._gradient = DeviceGradient(size, self._comms, self._nodes, self._groups, self._device)
        return self._gradient.memory

    @property
    def buckets(self) -> tuple[range, ...]:
        """Everything at once."""
        return (range(0 if self._gradient is None else self._gradient.memory.numel()),)

    def start(self, bucket: int) -> None:
        """Nothing happens before `finish`."""

    def poll(self) -> None:
        """Nothing to progress."""

    def finish(self, extras: Sequence[float] = ()) -> Tensor:
        """The sum of the gradients, float32 [size] on the device, read-only, valid until the next `finish`.

        `extras`: a few numbers, equally many on all learners, whose sums are `extra_sums` afterwards. Raises
        RuntimeError before `open_gradient` and when a learner has gone, TimeoutError after the time limit.
        """
        if self._gradient is None:
            raise RuntimeError("no gradient is open")
        with self._timed("reducer.mean_gradients"):
            squares = self._gradient.sum()
            numbers = np.concatenate([np.array(extras, np.float64), squares])
            self._host.sum_array(numbers)
            self.extra_sums, self._gradient.squares = numbers[: len(extras)], numbers[len(extras) :]
            return self._gradient.collect()

    def square_sum(self) -> float:
        """Sum of the squares of the last result, in float64; equal on all learners. Local."""
        return 0.0 if self._gradient is None else sum(self._gradient.squares.tolist())

    def close(self) -> None:
        """Give groups and memory back; the gradient and the last result may not be used afterwards."""
        self._gradient = None
        if self._groups is not None:
            self._groups.close()


class DeviceGradient:
    """The gradient of one learner and the buffers of its sum."""

    def __init__(
        self,
        size: int,
        comms: LearnerComms,
        nodes: NodeOrder,
        groups: ProcessGroups | None,
        device: torch.device,
    ) -> None:
        """Local. `groups`: None for a single learner."""
        self.memory = torch.zeros(size, device=device)
        """float32 [size], this learner's gradient"""
        self.squares: npt.NDArray[np.float64] = np.zeros(nodes.smallest)
        """float64 [shards], of the last sum, once they have been summed over the learners"""
        self._nodes = nodes
        self._groups = groups
        self._device = device
        self._index = comms.node.rank
        self._owner = self._index < nodes.smallest
        """Adds up a shard; not so the extra learners of a larger node."""
        node, shards = comms.node.size, nodes.smallest
        length = 0 if groups is None else -(-size // shards)
        self._leaving = [length if index < shards else 0 for index in range(node)]
        self._arriving = [length if self._owner else 0] * node
        where = device if groups is None else groups.device
        pin = where != device
        self._whole = torch.zeros(length * shards, device=where, pin_memory=pin)
        """The gradient, padded to shards of one length."""
        self._pieces = torch.empty(node, length if self._owner else 0, device=where)
        self._across = torch.empty(nodes.num_nodes, length, device=where)
        self._no_shard = torch.zeros(length, device=where)
        """What a learner that is no owner gives to the others."""
        self._gathered = torch.empty(node * length, device=where, pin_memory=pin)
        self._work: dist.Work | None = None
        self._result = self.memory

    def sum(self) -> npt.NDArray[np.float64]:
        """Sum this learner's shard and begin to gather all; collective over the learners.

        Returns what this learner knows of the squares of the shards, float64 [shards], zero elsewhere: their sums over
        the learners have the same bits on all.
        """
        squares = np.zeros(self._nodes.smallest)
        groups, size = self._groups, self.memory.numel()
        if groups is None:
            squares[0] = float(torch.linalg.vector_norm(self.memory, dtype=torch.float64)) ** 2
            return squares
        if size == 0:
            return squares
        self._whole[:size].copy_(self.memory)
        shard = self._inside_node(groups)
        if self._owner and groups.cross is not None:
            arrived = self._across.view(-1)
            groups.wait(all_gather(arrived, shard, group=groups.cross, async_op=True))
            shard = tree_sum_([self._across[rank] for rank in self._nodes.ranks])
        if groups.node is None:
            self._work, self._gathered = None, shard
        else:
            gathered = self._gathered
            self._work = all_gather(gathered, shard, group=groups.node, async_op=True)
        if self._owner and self._nodes.mine == 0:
            norm = torch.linalg.vector_norm(shard, dtype=torch.float64)
            groups.settle()
            squares[self._index] = float(norm) ** 2
        return squares

    def collect(self) -> Tensor:
        """Wait for the sum that `sum` began: float32 [size] on the device."""
        if self._groups is not None and self.memory.numel():
            self._groups.wait(self._work)
            whole = self._gathered[: self.memory.numel()]
            self._result = whole.to(self._device, non_blocking=True)
        return self._result

    def _inside_node(self, groups: ProcessGroups) -> Tensor:
        """The node's sum of this learner's shard; nothing to speak of on learners without one."""
        if groups.node is None:
            return self._whole
        arrived = self._pieces.view(-1)
        groups.wait(
            dist.all_to_all_single(
                arrived, self._whole, self._arriving, self._leaving, group=groups.node, async_op=True
            )
        )
        return tree_sum_(list(self._pieces)) if self._owner else self._no_shard


def tree_sum_(pieces: list[Tensor]) -> Tensor:
    """Sum equal-shaped tensors in the order of `message_sum.tree_sum`; overwrites them, and returns the first."""
    while len(pieces) > 1:
        for left, right in zip(pieces[::2], pieces[1::2], strict=False):
            left.add_(right)
        pieces = pieces[::2]
    return pieces[0]
