"""Compute threads per rank: the cores it may use, divided by the ranks that share them."""

from __future__ import annotations

import os
from itertools import pairwise

from hpcrl.config import RunConfig

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LARGE_PRODUCT = 2**24
"""Multiplications of a learner's gradient step in one layer. Measured on two cores, 4 epochs of PPO: with a second
thread 512 rows of 256 x 256 take 0.64 of the time, 256 rows 0.8; 64 rows, or 256 rows of 64 x 64, take 1.2."""


def threads_per_rank(local_ranks: int, most: int | None = None) -> int:
    """OMP_NUM_THREADS where it is set, else allowed cores / ranks on this node, from 1 to `most`."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    share = max(1, len(os.sched_getaffinity(0)) // max(local_ranks, 1))
    return share if most is None else min(share, most)


def useful_threads(config: RunConfig) -> int | None:
    """The most that pays; None: as many as there are cores. Pure.

    Small layers are over before a second thread has begun, and its spinning costs a core.
    """
    model, ranks = config.model, config.ranks
    if model.torso != "mlp":
        return None
    learners = ranks.workers if config.scheme == "synchronous" else ranks.learners
    largest = max((first * second for first, second in pairwise(model.hidden_sizes)), default=0)
    return None if config.gradient_batch // learners * largest >= _LARGE_PRODUCT else 1


def limit_threads(threads: int) -> None:
    """Set the variables that numerical libraries read when they load; call before importing any of them."""
    for name in _VARIABLES:
        os.environ.setdefault(name, str(threads))


def set_torch_threads(threads: int) -> int:
    """Tell torch, whatever it read at import; the number it uses now."""
    import torch

    torch.set_num_threads(threads)
    return torch.get_num_threads()
