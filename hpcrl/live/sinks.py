"""Where exported numbers go: event files of TensorBoard, a run of Weights & Biases, CSV files."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from hpcrl.live.extras import load_extra
from hpcrl.live.series import Point
from hpcrl.storage.result_file import with_attempt
from hpcrl.storage.schema import TABLES, Rows


class Sink(Protocol):
    """Takes points. Making one forgets what an earlier one of the same run and place has taken, where it can."""

    def add(self, points: Iterable[Point]) -> None:
        """Take points, in any order."""

    def close(self) -> None:
        """Bring everything to where it belongs."""


class EventFiles:
    """A folder of TensorBoard's event files: one per attempt, under a name of its own, so that it can be replaced."""

    def __init__(self, folder: Path, *, restarts: bool) -> None:
        """Removes files of this kind from `folder`, others stay.

        `restarts`: have a TensorBoard that has read earlier attempts already drop what a later one takes back.
        Raises ConfigError without tensorboardX.
        """
        self._make_writer = load_extra("tensorboardX.record_writer", "tensorboard").RecordWriter
        self._make_event = load_extra("tensorboardX.proto.event_pb2", "tensorboard").Event
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("events.out.tfevents.*.hpcrl"):
            old.unlink()
        self._folder, self._restarts = folder, restarts
        self._writers: dict[int, Any] = {}

    def add(self, points: Iterable[Point]) -> None:
        """Write them, as float32, which is what TensorBoard keeps."""
        for point in points:
            writer = self._writers.get(point.attempt) or self._begin(point)
            event = self._make_event(wall_time=point.time, step=point.env_steps)
            event.summary.value.add(tag=point.series, simple_value=point.value)
            writer.write(event.SerializeToString())
        for writer in self._writers.values():
            writer.flush()

    def _begin(self, first: Point) -> Any:
        path = self._folder / f"events.out.tfevents.{first.attempt:010d}.hpcrl"
        writer = self._writers[first.attempt] = self._make_writer(str(path))
        version = self._make_event(wall_time=first.time, file_version="brain.Event:2")
        writer.write(version.SerializeToString())
        if self._restarts and first.attempt > 1:
            start = self._make_event(wall_time=first.time, step=first.env_steps)
            start.session_log.status = start.session_log.START
            writer.write(start.SerializeToString())
        return writer

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


class WandbRun:
    """A new run of Weights & Biases. Its own variables say where to (WANDB_MODE=offline: into a folder here)."""

    def __init__(self, project: str, name: str, config: Mapping[str, Any]) -> None:
        """`config`: the run's, for its page. Raises ConfigError without wandb."""
        wandb = load_extra("wandb", "wandb")
        self._run = wandb.init(project=project, name=name, group=name, config=dict(config))
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def add(self, points: Iterable[Point]) -> None:
        """Log them, those of the same env_steps at once."""
        together: dict[int, dict[str, float]] = {}
        for point in points:
            values = together.setdefault(point.env_steps, {"env_steps": point.env_steps})
            values |= {point.series: point.value, "_timestamp": point.time}
        for env_steps in sorted(together):
            self._run.log(together[env_steps])

    def close(self) -> None:
        """End the run there."""
        self._run.finish()


class CsvFiles:
    """A folder with one file per table: a line of column names, then a line per row, with the column `attempt`."""

    TABLES = tuple(name for name in TABLES if name != "hashes")

    def __init__(self, folder: Path) -> None:
        """Replaces the files of an earlier one."""
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[str]] = {}
        for name in self.TABLES:
            self._files[name] = (folder / f"{name}.csv").open("w", encoding="utf-8", newline="")
            csv.writer(self._files[name]).writerow(with_attempt(TABLES[name]).names or ())

    def take(self, table: str, rows: Rows) -> None:
        """Write rows of a table: numbers so that reading them gives the same ones, nothing for NaN."""
        lines = ([_cell(value) for value in row] for row in rows.tolist())
        csv.writer(self._files[table]).writerows(lines)
        self._files[table].flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if isinstance(value, float) and math.isnan(value) else value
