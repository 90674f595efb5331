"""The fields of a learner's batch, how old they are, and which trajectories they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.data.specs import TrajectorySpec
from hpcrl.data.trajectory import ORIGIN, Trajectory
from hpcrl.storage.schema import TABLES, Rows

Fields = dict[str, npt.NDArray[Any]]


def parts_of(trajectories: Sequence[Trajectory], spec: TrajectorySpec) -> dict[str, list[npt.NDArray[Any]]]:
    """The arrays of each field, to be joined along their columns; at least one. Pure."""
    if trajectories:
        names = trajectories[0].fields
        return {name: [trajectory.fields[name] for trajectory in trajectories] for name in names}
    return {
        field.name: [np.empty((field.entries(spec.unroll_length), 0, *field.shape), field.dtype)]
        for field in spec.fields
    }


def slots_of(fields: Fields) -> int:
    """env_steps of a batch, whether valid or not; of gradients, those behind them. Pure."""
    return int(fields["slots"].sum()) if "slots" in fields else fields["valid"].size


def origins_of(trajectories: Sequence[Trajectory]) -> npt.NDArray[np.void]:
    """ORIGIN [C] of the batch's columns. Pure."""
    return np.concatenate([np.zeros(0, ORIGIN), *(trajectory.origin for trajectory in trajectories)])


def trained_rows(
    updates: int, fields: Fields, origins: npt.NDArray[np.void], max_lag: int
) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Rows of table `trajectories` for the update after `updates`, and its valid env_steps by lag 0..max_lag.

    Columns of one origin lie side by side. Raises RuntimeError when the lag contract was broken. Pure.
    """
    valid = fields["valid"]
    lag = (updates - fields["parameter_version"])[valid]
    if lag.size and (lag.min() < 0 or lag.max() > max_lag):
        raise RuntimeError(f"lag {lag.min()}..{lag.max()} outside 0..lag.max_lag={max_lag}")
    first = np.append(True, origins[1:] != origins[:-1])[: len(origins)]
    column = np.broadcast_to(np.cumsum(first) - 1, valid.shape)[valid]
    num_trajectories = int(first.sum())
    weights = fields["env_steps"][valid] if "env_steps" in fields else None  # a gradient is of many
    flat = np.bincount(column * (max_lag + 1) + lag, weights, num_trajectories * (max_lag + 1))
    counts = flat.astype(np.int64).reshape(num_trajectories, max_lag + 1)
    trajectory, lags = np.nonzero(counts)
    origin = origins[first][trajectory]
    rows = TABLES["trajectories"].rows(
        len(lags),
        update=updates + 1,
        collected_in=origin["attempt"],
        actor=origin["actor"],
        grant=origin["grant"],
        parameter_version=updates - lags,
        env_steps=counts[trajectory, lags],
    )
    return rows, counts.sum(axis=0)


def normalize_weights(parts: Sequence[Trajectory]) -> None:
    """Divide the importance weights, in place, by the largest of the batch: every part tells its shard's. Local."""
    largest = max(float(part.header["largest_weight"]) for part in parts)
    for part in parts:
        part.fields["weight"] /= largest
