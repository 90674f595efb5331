"""From |TD error| to priorities: floor, exponent, and what is refused (Schaul et al. 2016, section 3.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcrl.config import ReplayConfig

EPSILON = 1e-6
"""Added to each |TD error|, so that what has none is still drawn."""

Values = npt.NDArray[np.float64]


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
