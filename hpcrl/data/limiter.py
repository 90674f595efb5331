"""How far actors and learners may run ahead of each other: samples_per_insert with a tolerance. No clock, no MPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class Limiter:
    """Balance of one shard: samples that its inserts allow, less those that were drawn. Local.

    With I env_steps inserted after the first `min_size`, and S samples drawn, |samples_per_insert * I - S| stays within
    tolerance * max(batch, samples_per_insert * inserted_at_once). One side can always go on: where neither could, the
    balance would be more than the tolerance less an insert, and less than a batch less the tolerance, or (before
    min_size is reached, with a balance of 0) an insert more than the tolerance. The constructor refuses such limits.
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
        """All of this shard: its part of min_size, samples drawn at once (`batch`), what its actors insert at once.

        Raises ValueError naming the key where both sides could come to wait for each other.
        """
        self._ratio, self._min_size = samples_per_insert, min_size
        inserts = samples_per_insert * inserted_at_once
        self._most = tolerance * max(batch, inserts)
        """Samples that the balance may be away from 0."""
        need = max((batch + inserts) / 2, inserts)
        if self._most < need:
            least = need / max(batch, inserts)
            raise ValueError(
                f"replay.tolerance={tolerance:g} lets actors and learners wait for each other for ever: {batch} "
                f"samples are drawn at a time, and {inserted_at_once} env_steps inserted, for {inserts:g} samples; use "
                f"at least {np.ceil(least * 1000) / 1000:g} (1 always does)"
            )
        self.inserted = 0
        """Valid env_steps ever."""
        self.sampled = 0
        """Entries ever drawn."""
        self._since = 0, 0, 0.0
        """inserted, sampled and balance at the beginning of this attempt."""

    @property
    def balance(self) -> float:
        """Samples that the inserts so far allow, less those drawn; below 0 the learners are ahead."""
        return self._balance(0)

    def may_insert(self, under_way: int, given_back: int = 0) -> bool:
        """Whether so many env_steps may be under way: granted and not inserted yet, the next grant's among them.

        given_back: of the entries drawn those that will not count as drawn if the run is stopped now.
        """
        return self._balance(under_way) + given_back <= self._most

    def may_sample(self, count: int) -> bool:
        """Whether `count` entries may be drawn now."""
        return self.inserted >= self._min_size and self.balance - count >= -self._most

    def insert(self, env_steps: int) -> None:
        """Count valid env_steps that were inserted."""
        self.inserted += env_steps

    def sample(self, count: int) -> None:
        """Count entries that were drawn."""
        self.sampled += count

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """For a checkpoint: inserted, sampled and the balance [1], and what the balance is counted by [2] from [3]."""
        return {
            "limits": np.array([self._ratio, self._min_size]),
            "since": np.array(self._since, np.float64),
            "inserted": np.array([self.inserted], np.int64),
            "sampled": np.array([self.sampled], np.int64),
            "balance": np.array([self.balance]),
        }

    def load(self, parts: Sequence[Mapping[str, npt.NDArray[Any]]], inserted: int) -> None:
        """Go on, after the shards of another attempt; `inserted`: env_steps that this shard's memory has loaded.

        What was drawn and the balance are divided by that; alone, under the same limits, a shard goes on as if nothing
        had happened. The limits are those of now: a balance outside of them begins at the border, so that no burst of
        updates follows a changed samples_per_insert.
        """
        total, sampled, balance = (
            sum(part[name][0].item() for part in parts) for name in ("inserted", "sampled", "balance")
        )
        share = inserted / total if total else 0.0
        self.inserted, self.sampled = inserted, round(share * sampled)
        # what waits for min_size first has to be able to insert up to there
        most = self._most if inserted >= self._min_size else 0.0
        balance = min(max(share * balance, -self._most), most)
        self._since = self.inserted, self.sampled, balance
        if len(parts) == 1 and parts[0]["limits"].tolist() == [self._ratio, self._min_size]:
            before_inserted, before_sampled, before = parts[0]["since"].tolist()
            since = int(before_inserted), int(before_sampled), before
            if share == 1 and abs(self._balance_since(since, 0)) <= self._most:
                self._since = since

    def _balance(self, more: int) -> float:
        """After `more` env_steps."""
        return self._balance_since(self._since, more)

    def _balance_since(self, since: tuple[int, int, float], more: int) -> float:
        inserted, sampled, balance = since
        counted = max(self.inserted + more, self._min_size) - max(inserted, self._min_size)
        return balance + self._ratio * counted - (self.sampled - sampled)
