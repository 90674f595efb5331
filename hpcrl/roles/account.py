"""What an update was trained on, in numbers: env_steps and their lag, for the result file and for what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcrl.data.trajectory import Trajectory
from hpcrl.roles.batch import Fields, origins_of, slots_of, trained_rows
from hpcrl.roles.session import Session
from hpcrl.storage.raw_rows import row_checksums
from hpcrl.storage.schema import TABLES, Rows

Sums = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trained:
    """What all learners together have trained on in one update. Equal on all of them."""

    env_steps: int
    """Of the run, after the update."""
    valid_fraction: float
    lag: dict[str, Any]
    """lag_min, lag_mean and lag_max, as far as there is any."""
    lag_rows: Rows
    """For table `lag`; without number of the update."""
    rows_checksum: float = 0.0


class Account(Protocol):
    """Counts updates one after the other."""

    def look(self, updates: int, fields: Fields, trajectories: Sequence[Trajectory]) -> None:
        """Before the update after `updates`: this learner's share of the batch. RuntimeError if it may not be."""

    def sums(self) -> Sums:
        """After it: numbers to be summed over all learners; of the same size on each."""

    def book(self, sums: Sums, env_steps: int, *, again: bool) -> Trained:
        """What those sums say. env_steps: of the run before; `again`: the batch was counted before."""


class FreshAccount:
    """Of trajectories that are trained on within the lag contract: which ones, and every lag there was."""

    def __init__(self, session: Session) -> None:
        """Local."""
        self._session = session
        self._max_lag = session.config.lag.max_lag

    def look(self, updates: int, fields: Fields, trajectories: Sequence[Trajectory]) -> None:
        """As Account.look; refuses what is older than lag.max_lag."""
        self._slots = slots_of(fields)
        self._rows, self._histogram = trained_rows(updates, fields, origins_of(trajectories), self._max_lag)

    def sums(self) -> Sums:
        """env_steps by lag, slots, checksum."""
        self._session.record("trajectories", self._rows)
        return np.array([*self._histogram, self._slots, row_checksums(self._rows).sum()], np.float64)

    def book(self, sums: Sums, env_steps: int, *, again: bool) -> Trained:
        """As Account.book."""
        histogram, (slots, checksum) = sums[:-2], sums[-2:]
        lags, valid = np.flatnonzero(histogram), float(histogram.sum())
        summary = _lag_summary(lags, float(lags @ histogram[lags] / valid)) if lags.size else {}
        return Trained(
            env_steps if again else env_steps + int(valid),
            valid / max(slots, 1.0),
            summary,
            TABLES["lag"].rows(len(lags), lag=lags, env_steps=histogram[lags].astype(int)),
            checksum,
        )


class SampledAccount:
    """Of samples from a replay memory, which no bound holds: the env_steps of the run are those inserted there."""

    def __init__(self, learner: int, learners: int) -> None:
        """Local. `learner` of so many."""
        self._place, self._learners = learner, learners

    def look(self, updates: int, fields: Fields, trajectories: Sequence[Trajectory]) -> None:
        """As Account.look; refuses versions that are not there yet."""
        valid = fields["valid"]
        lag = (updates - fields["parameter_version"])[valid]
        if lag.size and lag.min() < 0:
            raise RuntimeError(f"lag {lag.min()}: sampled before it was collected")
        self._inserted = sum(int(one.header["inserted"]) for one in trajectories)
        self._mine = (
            (lag.min(), lag.max(), lag.sum(), lag.size, valid.size) if lag.size else (0, 0, 0, 0, valid.size)
        )

    def sums(self) -> Sums:
        """Smallest and largest lag, their sum, valid env_steps and slots, each at the place of this learner."""
        places = np.zeros((self._learners, 5))
        places[self._place] = self._mine
        return places.reshape(-1)

    def book(self, sums: Sums, env_steps: int, *, again: bool) -> Trained:
        """As Account.book."""
        places = sums.reshape(-1, 5)
        some = places[places[:, 3] > 0]
        valid = float(some[:, 3].sum())
        lags = np.array([some[:, 0].min(), some[:, 1].max()], int) if len(some) else np.zeros(0, int)
        summary = _lag_summary(lags, float(some[:, 2].sum() / valid)) if len(some) else {}
        fraction = valid / max(float(places[:, 4].sum()), 1.0)
        return Trained(max(env_steps, self._inserted), fraction, summary, TABLES["lag"].rows(0))


def open_account(session: Session, learner: int) -> Account:
    """What the algorithm of this run needs, for a learner (or worker). Local."""
    if session.config.algorithm.uses_replay:
        return SampledAccount(learner, session.config.ranks.learners)
    return FreshAccount(session)


def _lag_summary(lags: npt.NDArray[Any], mean: float) -> dict[str, Any]:
    return {"lag_min": int(lags[0]), "lag_mean": mean, "lag_max": int(lags[-1])}
