"""torch.distributed's gloo on the same ranks, over the loopback of one node: what many learners on CPUs use."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm


@contextmanager
def gloo_group(comm: Comm) -> Iterator[None]:
    """A process group of all ranks of `comm`, which share a node. Collective over `comm`."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = comm.bcast(tempfile.mkdtemp(prefix="hpcrl-gloo-") if comm.rank == 0 else None)
    meeting = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=meeting, rank=comm.rank, world_size=comm.size)
    yield
    comm.Barrier()
    dist.destroy_process_group()
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)


def gloo_sum(vector: npt.NDArray[np.float32]) -> None:
    """Replace `vector` by its sum over the ranks. Collective over the group."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.from_numpy(vector))
