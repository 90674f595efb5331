"""Compute threads per rank: the cores it may use, divided by the ranks that share them."""

from __future__ import annotations

import os

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def threads_per_rank(local_ranks: int, most: int | None = None) -> int:
    """OMP_NUM_THREADS where it is set, else allowed cores / ranks on this node, from 1 to `most`."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    share = max(1, len(os.sched_getaffinity(0)) // max(local_ranks, 1))
    return share if most is None else min(share, most)


def useful_threads(torso: str) -> int | None:
    """The most that pays. Small layers are over before a second thread has begun, and its spinning costs a core."""
    return 1 if torso == "mlp" else None


def limit_threads(threads: int) -> None:
    """Set the variables that numerical libraries read when they load; call before importing any of them."""
    for name in _VARIABLES:
        os.environ.setdefault(name, str(threads))


def set_torch_threads(threads: int) -> int:
    """Tell torch, whatever it read at import; the number it uses now."""
    import torch

    torch.set_num_threads(threads)
    return torch.get_num_threads()
