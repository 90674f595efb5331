"""How far actors and learners may run ahead of each other: samples_per_insert with a tolerance. No clock, no MPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt


class Limiter:
    """Balance of one shard: samples that its inserts allow, less those that were drawn. Local.

    With I env_steps inserted after the first `min_size`, and S samples drawn, |samples_per_insert * I - S| stays within
    tolerance * max(batch, samples_per_insert * inserted_at_once).
    """

    def __init__(
        self,
        *,
        samples_per_insert: float,
        min_size: int,
        tolerance: float,
        batch: int,
        inserted_at_once: int,
    ) -> None:
        """All of this shard: its part of min_size, what is drawn of it at once (`batch`), what its actors insert at once.

        Raises ValueError naming the key where both sides could come to wait for each other.
        """

    inserted: int
    """Valid env_steps ever."""
    sampled: int
    """Entries ever drawn."""

    def may_insert(self, under_way: int) -> bool:
        """Whether `under_way` env_steps, granted and not inserted yet, are allowed to come; ask before granting more."""
        raise NotImplementedError

    def may_sample(self, count: int) -> bool:
        """Whether `count` entries may be drawn now."""
        raise NotImplementedError

    def insert(self, env_steps: int) -> None:
        """Count valid env_steps that were inserted."""

    def sample(self, count: int) -> None:
        """Count entries that were drawn."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """For a checkpoint: inserted, sampled and the balance, [1] each."""
        raise NotImplementedError

    def load(self, parts: Sequence[Mapping[str, npt.NDArray[Any]]], inserted: int) -> None:
        """Go on, after the shards of another attempt; `inserted`: env_steps that this shard's memory has loaded.

        What was drawn and the balance are divided by that. The limits are those of now: a balance outside of them
        begins at the border, so that no burst of updates follows a changed samples_per_insert.
        """
