"""Which device each learner computes on, agreed on by all ranks before anything is made."""

from __future__ import annotations

from typing import Literal

from hpcrl.comm.groups import LearnerComms
from hpcrl.comm.world import World
from hpcrl.config import ConfigError

Kind = Literal["cpu", "cuda"]


def agree_on_devices(world: World, wanted: Literal["cpu", "cuda", "auto"]) -> Kind:
    """Note the device of each learner in `world.seats`; their kind. Collective over the world unless `wanted` is cpu.

    The learners of a node take its GPUs in turn. Only learners load torch, and only where they may find a GPU. Raises
    ConfigError on every rank when `wanted` is cuda and some learner has none.
    """
    if wanted == "cpu":
        return "cpu"
    mine = None if world.learners is None else _own_gpu(world.learners)
    world.come_together()
    gpus: list[int | None] = world.comm.allgather(mine)
    without = {
        seat["node"]: None for seat, gpu in zip(world.seats, gpus, strict=True) if gpu is not None and gpu < 0
    }
    if without and wanted == "cuda":
        raise ConfigError(
            f"ranks.learner_device=cuda, but PyTorch finds no GPU for the learners on {', '.join(without)}; use auto "
            "or cpu, or give the job GPUs and a CUDA build of torch"
        )
    if without:
        return "cpu"
    for seat, gpu in zip(world.seats, gpus, strict=True):
        if gpu is not None:
            seat["device"] = f"cuda:{gpu}"
    return "cuda"


def _own_gpu(comms: LearnerComms) -> int:
    """Index of this learner's GPU, -1 without any. Local; loads torch."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return int(comms.node.rank % count) if count else -1
