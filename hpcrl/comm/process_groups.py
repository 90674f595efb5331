"""Groups of torch.distributed over the learners, made from their MPI communicators: one per node, some across."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch._C._distributed_c10d import TCPStore

from hpcrl.comm.groups import LearnerComms
from hpcrl.comm.node_order import NodeOrder
from hpcrl.comm.wait import Waiter

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The name changed in torch 2.13."""

_START_S = 600.0
"""For connecting, which the others may be late for; however short the limit of a sum is."""
_EAGER_S = 0.01
"""Most sums are over by then; sleeping in between would cost more than they take."""


class ProcessGroups:
    """What several learners exchange tensors through.

    Attributes:
        node: the learners of this node.
        cross: those with this learner's rank in its node; None where some node has no such learner, or it is alone.
        device: where tensors must lie that are exchanged: the learner's GPU with nccl, the CPU with gloo.
    """

    def __init__(
        self,
        comms: LearnerComms,
        nodes: NodeOrder,
        waiter: Waiter,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        """Collective over the learners; blocking, at start-up only.

        nccl where every learner has a GPU of its own, else gloo. `timeout_s`: of a sum that is waited for.
        Raises RuntimeError where torch.distributed has been initialized by somebody else.
        """
        if dist.is_initialized():
            raise RuntimeError("torch.distributed is in use already; hpcrl opens its own groups")
        self._comms = comms
        self._waiter = waiter
        self._timeout_s = timeout_s
        self.backend = "nccl" if _each_has_its_own(comms, device) else "gloo"
        self.device = device if self.backend == "nccl" else torch.device("cpu")
        group, limit = comms.group, timedelta(seconds=max(timeout_s, _START_S))
        self._store = _open_store(comms, limit)
        dist.init_process_group(
            self.backend, store=self._store, rank=group.rank, world_size=group.size, timeout=limit
        )
        seats: list[tuple[int, int]] = group.allgather((comms.node.bcast(group.rank), comms.node.rank))
        firsts = dict.fromkeys(first for first, _ in seats)
        inside = [[rank for rank, seat in enumerate(seats) if seat[0] == first] for first in firsts]
        across = [
            [rank for rank, seat in enumerate(seats) if seat[1] == index] for index in range(nodes.smallest)
        ]
        self.node = _make_groups(inside, group.rank, limit)
        self.cross = _make_groups(across, group.rank, limit)

    def wait(self, work: dist.Work | None) -> None:
        """Until what `work` fills may be read: by the CPU with gloo, by what is enqueued from here on with nccl.

        Local. Raises RuntimeError when another learner has gone, TimeoutError after the time limit.
        """
        if work is None:
            return
        if self.backend == "gloo":
            self._until(work.is_completed)
        work.wait()

    def settle(self) -> None:
        """Until what was enqueued on the current stream has run; politely. Local; raises as `wait`."""
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._until(event.query)

    def close(self) -> None:
        """Collective over the learners."""
        dist.destroy_process_group()
        self._waiter.until(self._comms.group.Ibarrier().Test)  # learner 0 holds the store

    def _until(self, ready: Callable[[], bool]) -> None:
        if not self._waiter.until(lambda: ready() or self._progress(), self._timeout_s, _EAGER_S):
            raise TimeoutError(
                f"learner {self._comms.group.rank}: a sum over the learners took longer than "
                f"reduction.timeout_s={self._timeout_s:g}"
            )

    def _progress(self) -> bool:
        # messages of other kinds that are under way (parameters, batches) move on only inside MPI calls
        self._comms.group.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        return False


def _each_has_its_own(comms: LearnerComms, device: torch.device) -> bool:
    """Whether nccl can serve: it refuses two ranks on one GPU. Collective over the learners."""
    if device.type == "cpu":
        return False
    mine = str(getattr(torch.cuda.get_device_properties(device), "uuid", device))
    gpus = comms.node.allgather(mine)
    fit = dist.is_nccl_available() and len(set(gpus)) == len(gpus)
    return bool(comms.group.allreduce(int(fit), MPI.MIN))


def _open_store(comms: LearnerComms, limit: timedelta) -> TCPStore:
    """Where the groups meet: on learner 0, at a port that is free. Collective over the learners."""
    group = comms.group
    hosts = group.allgather(MPI.Get_processor_name())
    host = "localhost" if set(hosts) == {hosts[0]} else group.bcast(socket.gethostname())
    if group.rank == 0:
        store = TCPStore(host, 0, is_master=True, timeout=limit, wait_for_workers=False)
        group.bcast(store.port)
        return store
    return TCPStore(host, group.bcast(None), is_master=False, timeout=limit, wait_for_workers=False)


def _make_groups(members: list[list[int]], mine: int, limit: timedelta) -> dist.ProcessGroup | None:
    """The group that holds `mine`, if it is not alone there. Collective over the learners, all groups in order."""
    own = None
    for ranks in members:
        if len(ranks) == 1:
            continue
        group = dist.new_group(ranks, timeout=limit)
        if mine in ranks:
            own = group
    return own
