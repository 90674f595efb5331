"""The fields of a learner's batch, and how old they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.data.specs import TrajectorySpec
from hpcrl.data.trajectory import Trajectory

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


def lag_histogram(updates: int, fields: Fields, max_lag: int) -> npt.NDArray[np.int64]:
    """Valid env_steps by lag 0..max_lag. Raises RuntimeError when the lag contract was broken. Pure."""
    lag = updates - fields["parameter_version"][fields["valid"]]
    if lag.size and (lag.min() < 0 or lag.max() > max_lag):
        raise RuntimeError(f"lag {lag.min()}..{lag.max()} outside 0..lag.max_lag={max_lag}")
    return np.bincount(lag, minlength=max_lag + 1)
