"""Which device each learner computes on, agreed on by all ranks before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hpcrl.comm.world import LearnerComms, World
from hpcrl.config import ConfigError

if TYPE_CHECKING:
    import torch

Kind = Literal["cpu", "cuda"]


def agree_on_device(world: World, wanted: Literal["cpu", "cuda", "auto"]) -> Kind:
    """The kind of device of all learners. Collective over the world unless `wanted` is cpu.

    Only learners load torch, and only where they may find a GPU. Raises ConfigError on every rank when `wanted` is
    cuda and some learner has none.
    """
    if wanted == "cpu":
        return "cpu"
    found: list[int | None] = world.comm.allgather(None if world.learners is None else num_gpus())
    without = dict.fromkeys(
        seat["node"] for seat, count in zip(world.seats, found, strict=True) if count == 0
    )
    if not without:
        return "cuda"
    if wanted == "auto":
        return "cpu"
    raise ConfigError(
        f"ranks.learner_device=cuda, but PyTorch finds no GPU for the learners on {', '.join(without)}; use auto or "
        "cpu, or give the job GPUs and a CUDA build of torch"
    )


def num_gpus() -> int:
    """GPUs that this process may use. Local; loads torch."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def own_device(comms: LearnerComms, kind: Kind) -> torch.device:
    """The device of this learner, made current: GPUs are given to the learners of a node in turn. Local."""
    import torch

    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", comms.node.rank % num_gpus())
    torch.cuda.set_device(device)
    return device
