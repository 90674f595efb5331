"""From |TD error| to priorities: floor, exponent, and what is refused (Schaul et al. 2016, section 3.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcrl.config import ReplayConfig
from hpcrl.data.sum_tree import Slots, SumTree

EPSILON = 1e-6
"""Added to each |TD error|, so that what has none is still drawn."""

Values = npt.NDArray[np.float64]
Weights = npt.NDArray[np.float32]


class Priorities:
    """p = (|TD error| + EPSILON)^alpha, and the largest |TD error| so far. Local.

    Where sampling is uniform, every p is 1.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.alpha = config.alpha if config.sampling == "prioritized" else 0.0
        self.largest = 1.0
        """|TD error| that new entries get whose priority nobody has given."""
        self.refused = 0
        """Negative ones, and such that were not finite."""

    def accept(self, td: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
        """Which of |TD error| [N] can be used; the others are counted."""
        good: npt.NDArray[np.bool_] = np.isfinite(td) & (td >= 0)
        self.refused += len(td) - int(np.count_nonzero(good))
        return good

    def powers(self, td: npt.NDArray[np.floating]) -> Values:
        """p of accepted |TD error| [N]."""
        if self.alpha == 0:
            return np.ones(len(td))
        if len(td):
            self.largest = max(self.largest, float(td.max()))
        powers: Values = (td.astype(np.float64) + EPSILON) ** self.alpha
        return powers

    def first(self, given: npt.NDArray[np.float32]) -> Values:
        """p of new entries, by the |TD error| [N] that their actor has given; one that is refused gets the largest."""
        good = self.accept(given)
        powers = np.full(len(given), self.newest)
        powers[good] = self.powers(given[good])
        return powers

    @property
    def newest(self) -> float:
        """p of new entries whose priority nobody has given."""
        return float((self.largest + EPSILON) ** self.alpha)


class PriorityTable:
    """A sum tree over slots, and what is drawn of it and comes back. Local."""

    def __init__(self, capacity: int, config: ReplayConfig) -> None:
        self.tree = SumTree(capacity)
        self.priorities = Priorities(config)
        self.entries = 0
        """Slots that can be drawn."""
        self.stale = 0
        """Priorities that came for entries replaced meanwhile, and were left out."""

    def draw(self, count: int, beta: float, share: float, rng: np.random.Generator) -> tuple[Slots, Weights]:
        """Slots, one from each of `count` equal parts of the total, and weights (share * P)^-beta, [count] each.

        Raises RuntimeError where there is no entry.
        """
        if not self.entries:
            raise RuntimeError("a sample was asked of a replay memory without a single entry")
        slots = self.tree.draw(count, rng)
        probability = self.tree.leaves[slots] * (share / self.tree.total)
        return slots, (probability**-beta).astype(np.float32)

    def write_back(self, slots: Slots, same: npt.NDArray[np.bool_], td: npt.NDArray[np.float32]) -> None:
        """Take |TD error| [N] as priorities of slots [N], as far as these hold the `same` as when they were drawn."""
        self.stale += len(same) - int(np.count_nonzero(same))
        same[same] = self.priorities.accept(td[same])
        self.tree.assign(slots[same], self.priorities.powers(td[same]))

    def replace(self, old: Slots, new: Slots, priorities: Values) -> None:
        """Make slots empty, then entries of other ones, which may be among them."""
        self.entries += len(new) - int(np.count_nonzero(self.tree.leaves[old]))
        values = np.concatenate([np.zeros(len(old)), priorities])
        self.tree.assign(np.concatenate([old, new]), values)

    def rebuild(self) -> None:
        """After the tree's leaves were written to."""
        self.tree.rebuild()
        self.entries = int(np.count_nonzero(self.tree.leaves))


def sequence_priorities(
    td: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], mix: float
) -> npt.NDArray[np.float32]:
    """mix * max + (1 - mix) * mean of |TD error| [L, N] over valid env_steps, 0 without any: float32 [N]. Pure.

    Kapturowski et al. (2019), section 2.3, where mix is eta.
    """
    count = np.maximum(valid.sum(axis=0), 1)
    kept = np.where(valid, td, 0).astype(np.float64)
    mixed: npt.NDArray[np.float32] = (mix * kept.max(axis=0) + (1 - mix) * kept.sum(axis=0) / count).astype(
        np.float32
    )
    return mixed
