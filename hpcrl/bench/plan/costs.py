"""What a calibration has found, as plain numbers. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
    """Of some work on one rank."""

    cpu_s: float = 0.0
    """Of cores, those of helping threads and processes counted."""
    span_s: float = 0.0
    """From its begin to its end where there always is a core; more than cpu_s where it sleeps."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.span_s + other.span_s)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.cpu_s * times, self.span_s * times)

    def slower(self, times: float) -> Cost:
        """What it computes takes so many times as long; its sleeps do not."""
        more_s = (times - 1) * self.cpu_s
        return Cost(self.cpu_s + more_s, max(self.span_s + more_s, 0.0))

    def less(self, other: Cost) -> Cost:
        """What is left without `other`; never below 0."""
        return Cost(max(self.cpu_s - other.cpu_s, 0.0), max(self.span_s - other.span_s, 0.0))


@dataclass(frozen=True, slots=True)
class Line:
    """A cost that depends on a size, between the sizes at which it was measured on straight lines."""

    points: tuple[tuple[float, Cost], ...]

    def at(self, size: float) -> Cost:
        """Of `size`. Beyond the sizes measured the outermost line goes on; from one point, in proportion."""
        points = sorted(self.points, key=lambda point: point[0])
        if len(points) == 1:
            return points[0][1] * (size / points[0][0])
        index = next((i for i in range(1, len(points) - 1) if size <= points[i][0]), len(points) - 1)
        (low, below), (high, above) = points[index - 1], points[index]
        share = (size - low) / (high - low)
        return Cost(
            max(below.cpu_s + share * (above.cpu_s - below.cpu_s), 0.0),
            max(below.span_s + share * (above.span_s - below.span_s), 0.0),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What the parts of a run take on this machine. B: environments of one acting rank."""

    environment: Line
    """One step of B environments."""
    inference: Line
    """Choosing their actions."""
    collect: Line
    """A trajectory of B environments: both, T times, and writing it."""
    gradient: Line | None = None
    """Of a trajectory, where actors send gradients."""
    update: Line | None = None
    """All updates of a batch that is new, by a learner's trajectories of the whole run's environments, or samples."""
    sums_per_batch: int = 0
    """Gradients that those updates sum."""
    insert: Cost = Cost()
    """Of a trajectory into a replay memory."""
    sample: Line | None = None
    """Drawing and gathering so many samples."""
    whole: Cost
    """All that is done for one new batch where every role is in one process."""
    publish: Cost = Cost()
    """Of parameters, in that process."""
    send: Cost = Cost()
    """Of a trajectory, or gradient, in that process."""
    reduce: Cost = Cost()
    """A sum of gradients over two ranks."""
    agree: Cost = Cost()
    """A sum of a few numbers over two ranks."""
    together: float = 1.0
    """Times that all this takes on ranks beside each other, which take cores and caches from each other, and wait."""
    waiting: float = 0.0
    """Of a core, what a rank takes while it only waits: it polls, and is watched over."""
    valid_fraction: float = 1.0
    """Share of env_steps that are none of a reset."""
    start_s: float = 0.0
    """From the first process to the first update, of one rank."""
    save_s: float = 0.0
    """From the order to stop to the end of one rank's run: draining and saving are in it."""
    bytes: Mapping[str, float] = field(default_factory=dict)
    """checkpoint/ROLE: of all parts of a role; resident/ROLE: RAM of a rank; parameters_bytes; replay_bytes: of all
    replay memories; trajectory_bytes: of one environment."""


def median_cost(measured: Sequence[Mapping[str, Any]]) -> Cost:
    """Of some rounds."""
    return Cost(
        statistics.median(one["cpu_s"] for one in measured),
        statistics.median(one["span_s"] for one in measured),
    )
