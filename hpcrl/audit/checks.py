"""The checks of `hpcrl audit`: each yields what is wrong with the first row that it fails for, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.storage.raw_rows import row_checksums
from hpcrl.storage.runlog import AttemptHead
from hpcrl.storage.schema import Rows

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The rows of a run and of each update: a place is the index of an update's row in `updates`."""

    heads: list[AttemptHead]
    first: int
    """number of the first update there is to be"""
    lost: tuple[int, ...]
    """updates at which an attempt went on from one that was killed, and whose last rows are not in its file"""
    updates: Rows
    lag: Rows
    raw: Rows
    lag_place: Counts
    """place [rows] of each row of `lag`, of each of `raw`"""
    raw_place: Counts

    def per_update(self, place: Counts, values: npt.NDArray[Any]) -> Counts:
        """Sum of values [rows] for each update [U]."""
        sums = np.zeros(len(self.updates), np.int64)
        np.add.at(sums, place, values)
        return sums

    def of_attempt(self, value: Callable[[AttemptHead], int]) -> Counts:
        """A number of its attempt's head for each update [U]."""
        known = {head.attempt: value(head) for head in self.heads}
        return np.array([known[int(attempt)] for attempt in self.updates["attempt"]], np.int64)

    @property
    def after_lost(self) -> Mask:
        """Which updates [U] come right after some that are not in the file."""
        return np.isin(self.updates["update"], np.array(self.lost, np.int64) + 1)

    def env_steps(self) -> Counts:
        """Valid env_steps of each update [U] by the cumulative numbers, but where those before are not there."""
        steps = np.diff(self.updates["env_steps"].astype(np.int64), prepend=0)
        alone = self.after_lost
        alone[:1] |= self.updates["update"][:1] != 1
        return np.where(alone, self.per_update(self.lag_place, self.lag["env_steps"]), steps)


def first_row(wrong: Mask, say: Callable[[int], str]) -> Iterator[str]:
    """What there is to say of the first row that is wrong."""
    if wrong.any():
        more = int(wrong.sum()) - 1
        yield say(int(np.argmax(wrong))) + (f" (and {more} more)" if more else "")


def max_lag(head: AttemptHead) -> int:
    """The bound of an attempt."""
    return int(head.config["lag"]["max_lag"])


def _name(row: Any) -> str:
    return (
        f"update {row['update']}, actor {row['actor']}, grant {row['grant']} of attempt {row['collected_in']}"
    )


def strays(rows: Rows) -> Iterator[str]:
    """Raw rows of updates that there are none of."""
    yield from first_row(
        np.ones(len(rows), np.bool_),
        lambda at: f"{_name(rows[at])}: trained in an update that the table `updates` does not have",
    )


def _numbers(seen: Evidence) -> Iterator[str]:
    """Updates count on over the attempts, and versions with them."""
    updates = seen.updates
    numbers = updates["update"]
    expected = np.append(seen.first, numbers + 1)[: len(numbers)]
    expected[seen.after_lost] = numbers[seen.after_lost]
    yield from first_row(
        numbers != expected,
        lambda at: (
            f"update {expected[at]} has no row in attempt {updates['attempt'][at]}; update {numbers[at]} follows"
        ),
    )
    yield from first_row(
        updates["parameter_version"] != numbers,
        lambda at: f"update {numbers[at]} made version {updates['parameter_version'][at]}",
    )
    begun = seen.of_attempt(lambda head: head.first_update)
    yield from first_row(
        numbers <= begun,
        lambda at: f"update {numbers[at]} comes before {begun[at] + 1}, the first of its attempt",
    )


def _versions(seen: Evidence) -> Iterator[str]:
    """No version is from the future, from another attempt than it says, or too old."""
    raw, place = seen.raw, seen.raw_place
    lag = seen.updates["update"][place] - 1 - raw["parameter_version"]
    yield from first_row(
        lag < 0,
        lambda at: (
            f"{_name(raw[at])}: version {raw['parameter_version'][at]} was not there before that update"
        ),
    )
    if not all(head.config for head in seen.heads):
        yield "the bound is not known: an attempt's file holds no config"
        return
    bound = seen.of_attempt(max_lag)[place]
    yield from first_row(
        lag > bound, lambda at: f"{_name(raw[at])}: lag {lag[at]} is more than lag.max_lag={bound[at]}"
    )
    begun = {head.attempt: head.first_update for head in seen.heads}
    earliest = np.array([begun.get(int(attempt), 0) for attempt in raw["collected_in"]], np.int64)
    yield from first_row(
        (raw["collected_in"] > raw["attempt"]) | (raw["parameter_version"] < earliest),
        lambda at: (
            f"{_name(raw[at])}: attempt {raw['collected_in'][at]} did not have version "
            f"{raw['parameter_version'][at]} to give to attempt {raw['attempt'][at]}"
        ),
    )


def _env_steps(seen: Evidence) -> Iterator[str]:
    """Every table has as many env_steps for each update, and the cumulative number adds up."""
    numbers = seen.updates["update"]
    counted, again = seen.env_steps(), seen.updates["batch_use"] > 1
    yield from first_row(
        again & (counted != 0),
        lambda at: f"update {numbers[at]}: {counted[at]} env_steps in `updates`, which were counted before",
    )
    for name, sums in (
        ("trajectories", seen.per_update(seen.raw_place, seen.raw["env_steps"])),
        ("lag", seen.per_update(seen.lag_place, seen.lag["env_steps"])),
    ):

        def say(at: int, name: str = name, sums: Counts = sums) -> str:
            return f"update {numbers[at]}: {sums[at]} env_steps in `{name}`, {counted[at]} in `updates`"

        yield from first_row((sums != counted) & ~again, say)


def _checksums(seen: Evidence) -> Iterator[str]:
    """The raw rows are those that the learners wrote."""
    if len(seen.updates) and not len(seen.raw):
        yield "there are no raw rows: this file was written before hpcrl kept any"
        return
    sums, said = seen.per_update(seen.raw_place, row_checksums(seen.raw)), seen.updates["rows_checksum"]
    yield from first_row(
        sums != said,
        lambda at: (
            f"update {seen.updates['update'][at]}: its raw rows have the checksum {sums[at]}, not {said[at]}"
        ),
    )


def _once(seen: Evidence) -> Iterator[str]:
    """No trajectory was trained on more often than `batch_use` says: once, where batches are not used again."""
    names = ["collected_in", "actor", "grant"]
    pairs, rows = np.unique(seen.raw[[*names, "update"]], return_index=True)
    first = np.append(True, pairs[names][1:] != pairs[names][:-1])[: len(pairs)]
    numbers = np.arange(len(pairs))
    use = numbers - np.maximum.accumulate(np.where(first, numbers, 0)) + 1
    said = seen.updates["batch_use"][seen.raw_place[rows]]
    most = seen.of_attempt(lambda head: int(head.config.get("algorithm", {}).get("batch_uses", 1)))
    yield from first_row(
        seen.updates["batch_use"] > most,
        lambda at: (
            f"update {seen.updates['update'][at]}: batch_use is {seen.updates['batch_use'][at]}, the config "
            f"allows {most[at]}"
        ),
    )
    yield from first_row(
        use != said,
        lambda at: (
            f"{_name(pairs[at])}: trained before, in update {pairs['update'][at - 1]}"
            if use[at] > 1
            else f"{_name(pairs[at])}: batch_use is {said[at]}, but it was not trained before"
        ),
    )


def _histograms(seen: Evidence) -> Iterator[str]:
    """The lag histogram of each update, and its summary, are those of the raw rows."""
    own = seen.updates["update"][seen.raw_place] - 1 - seen.raw["parameter_version"]
    lags = np.union1d(own, seen.lag["lag"])
    counts = [np.zeros((len(seen.updates), len(lags)), np.int64) for _ in range(2)]
    np.add.at(counts[0], (seen.raw_place, np.searchsorted(lags, own)), seen.raw["env_steps"])
    np.add.at(counts[1], (seen.lag_place, np.searchsorted(lags, seen.lag["lag"])), seen.lag["env_steps"])
    recomputed, given = counts
    numbers = seen.updates["update"]

    def say(at: int) -> str:
        place, which = divmod(at, len(lags))
        return (
            f"update {numbers[place]}: {given[place, which]} env_steps of lag {lags[which]} in `lag`, "
            f"{recomputed[place, which]} by the raw rows"
        )

    yield from first_row((recomputed != given).reshape(-1), say)
    trained = recomputed.any(axis=1)
    if not trained.any():
        return
    occurs = recomputed[trained] > 0
    rows = seen.updates[trained]
    smallest, largest = lags[occurs.argmax(axis=1)], lags[::-1][occurs[:, ::-1].argmax(axis=1)]
    mean = recomputed[trained] @ lags / recomputed[trained].sum(axis=1)
    wrong = (rows["lag_min"] != smallest) | (rows["lag_max"] != largest) | ~np.isclose(rows["lag_mean"], mean)
    yield from first_row(
        wrong,
        lambda at: (
            f"update {rows['update'][at]}: lag {rows['lag_min'][at]} to {rows['lag_max'][at]}, mean "
            f"{rows['lag_mean'][at]:.4g} in `updates`; {smallest[at]} to {largest[at]}, {mean[at]:.4g} by the raw rows"
        ),
    )


CHECKS = (_numbers, _versions, _env_steps, _checksums, _once, _histograms)
"""All that look at the rows, in the order in which they are reported."""
