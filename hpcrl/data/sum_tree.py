"""Priorities by slot, drawn in proportion: a tree whose nodes are the sums of eight children."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_FAN = 8
"""As sum_tree_kernels.FAN, which numba comes with."""

Slots = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def _level_sizes(capacity: int) -> list[int]:
    """Nodes of each level, leaves first; all but the root's are filled up to whole families."""
    sizes = [-(-capacity // _FAN) * _FAN]
    while sizes[-1] > 1:
        parents = sizes[-1] // _FAN
        sizes.append(1 if parents == 1 else -(-parents // _FAN) * _FAN)
    return sizes


def tree_bytes(capacity: int) -> int:
    """Bytes of a tree for `capacity` slots: 8 / 7 of its leaves. Pure."""
    return 8 * sum(_level_sizes(capacity))


class SumTree:
    """float64 priorities of `capacity` slots, any number from 1 on; 0 is never drawn. Local.

    Each sum is recomputed from its children when one of these changes, so the total does not drift: it is the sum of
    the leaves, added in one fixed order.
    """

    def __init__(self, capacity: int) -> None:
        """All slots 0. Compiles the loops, or loads what another process compiled."""
        from hpcrl.data import sum_tree_kernels

        if capacity < 1:
            raise ValueError(f"a tree of {capacity} slots holds nothing; use 1 or more")
        self._kernels = sum_tree_kernels
        sizes = _level_sizes(capacity)
        self._offsets = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
        self._nodes = np.zeros(sum(sizes))
        self.leaves: Values = self._nodes[:capacity]
        """[capacity]; after writing to it call `rebuild`."""

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._nodes[-1])

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._nodes.nbytes

    def assign(self, slots: Slots, values: Values) -> None:
        """Set the priorities of slots [N] to finite values >= 0 [N]; of a slot that is there twice, the last one."""
        self._kernels.assign(self._nodes, self._offsets, slots, values)

    def rebuild(self) -> None:
        """Recompute all sums, after `leaves` was written to."""
        self._kernels.rebuild(self._nodes, self._offsets)

    def find(self, prefixes: Values) -> Slots:
        """For each prefix in [0, total] the first slot up to which the priorities add up to more, [N].

        Never one of priority 0: a prefix that rounding has brought to the total gets the last one that is not.
        `total` must be positive.
        """
        slots = np.empty(len(prefixes), np.int64)
        self._kernels.find(self._nodes, self._offsets, prefixes.astype(np.float64), slots)
        return slots

    def draw(self, count: int, rng: np.random.Generator) -> Slots:
        """One slot from each of `count` equal parts of the total, [count], rising (Schaul et al. 2016, B.2.1)."""
        return self.find((np.arange(count) + rng.random(count)) * (self.total / count))
