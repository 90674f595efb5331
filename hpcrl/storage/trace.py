"""What each rank did when, in the trace-event format that Chrome and Perfetto show: a file per rank, or all in one."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.config import ConfigError

FOLDER = "trace"
"""In a run directory; one folder per attempt in it, one file per rank in that."""
_EVENTS_AT_ONCE = 1024
_MOST_EVENTS = 1 << 16
_LATE_S = 1.0

_log = logging.getLogger(__name__)


def trace_file(run_dir: Path, attempt: int, rank: int) -> Path:
    """Where a rank writes. Pure."""
    return run_dir / FOLDER / f"{attempt:03d}" / f"{rank:05d}.json"


class TraceFile:
    """One rank's events. They wait in memory, of which there is a bound, and reach the file in `flush`, whole.

    The file is a JSON array of an event per line, which ends where the rank was killed: viewers do not mind. A disk
    that refuses ends the trace, not the run.
    """

    def __init__(
        self, path: Path, *, rank: int, name: str, shift_s: float, stop_s: float = math.inf, most_bytes: int
    ) -> None:
        """`shift_s`: what makes a time of this rank's clock, time.perf_counter, one of the run's.

        `stop_s`: of the rank's clock; later events are left out. `most_bytes`: the file does not grow beyond.
        """
        self._rank, self._shift_s, self._stop_s = rank, shift_s, stop_s
        self._left_bytes = most_bytes
        self._slices: list[tuple[int, str, float, float]] = []
        self._others: list[str] = []
        self._flushed = self._last = -math.inf
        self._begins = True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
        except OSError as error:
            self._give_up(str(error))
            return
        self._describe("process_name", 0, {"name": name})
        self._describe("process_sort_index", 0, {"sort_index": rank})

    def thread(self, thread: int, name: str) -> None:
        """Name the row on which slices of `thread` are shown."""
        self._describe("thread_name", thread, {"name": name})

    def slice(self, thread: int, name: str, start: float, stop: float) -> None:
        """Something took from `start` to `stop`, seconds of this rank's clock."""
        self._last = stop
        if stop <= self._stop_s and len(self._slices) < _MOST_EVENTS:
            self._slices.append((thread, name, start, stop))

    def counter(self, thread: int, name: str, when: float, value: float) -> None:
        """A quantity had a value from `when` on."""
        self._last = when
        if when <= self._stop_s and math.isfinite(value):
            self._others.append(
                f'{{"ph":"C","pid":{self._rank},"tid":{thread},"name":"{name}","ts":{self._us(when)},'
                f'"args":{{"{name}":{value:.6g}}}}}'
            )

    @property
    def due(self) -> bool:
        """Whether to `flush`: many events wait, or one for long. Reads no clock."""
        waiting = len(self._slices) + len(self._others)
        return waiting >= _EVENTS_AT_ONCE or (waiting > 0 and self._last - self._flushed > _LATE_S)

    @property
    def over(self) -> bool:
        """Nothing more will be written."""
        return self._left_bytes <= 0 or (self._last > self._stop_s and not self._slices)

    def flush(self) -> None:
        """Write what waits, as far as there is room."""
        lines = self._others + [
            f'{{"ph":"X","pid":{self._rank},"tid":{thread},"name":"{name}","ts":{self._us(start)},'
            f'"dur":{max(stop - start, 0.0) * 1e6:.3f}}}'
            for thread, name, start, stop in self._slices
        ]
        self._slices.clear()
        self._others.clear()
        self._flushed = self._last
        if not lines or self._left_bytes <= 0:
            return
        ends = np.cumsum([len(line) + len(",\n") for line in lines])
        fit = int(np.searchsorted(ends, self._left_bytes - len("\n]\n"), side="right"))
        if fit:
            content = (("[\n" if self._begins else ",\n") + ",\n".join(lines[:fit])).encode()
            self._begins = False
            self._left_bytes -= len(content)
            try:
                self._file.write(content)
                self._file.flush()
            except OSError as error:
                self._give_up(str(error))
                return
        if fit < len(lines):
            self._end()

    def close(self) -> None:
        """Write what waits, and the end."""
        self.flush()
        if self._left_bytes > 0:
            self._end()

    def _end(self) -> None:
        try:
            self._file.write(b"[]\n" if self._begins else b"\n]\n")
            self._file.close()
        except OSError as error:
            self._give_up(str(error))
        self._left_bytes = 0

    def _give_up(self, reason: str) -> None:
        _log.warning("the trace of rank %d ends here: %s", self._rank, reason)
        self._left_bytes = 0

    def _describe(self, kind: str, thread: int, what: dict[str, Any]) -> None:
        event = {"ph": "M", "pid": self._rank, "tid": thread, "name": kind, "args": what}
        self._others.append(json.dumps(event))

    def _us(self, when: float) -> str:
        return f"{(when + self._shift_s) * 1e6:.3f}"


def merge_traces(run: Path, out: Path, attempt: int | None = None) -> tuple[int, int, int]:
    """Join the files of an attempt's ranks into one that is valid JSON, also after a kill; the last attempt's for None.

    Returns (attempt, ranks, events). Raises ConfigError where there is none, or `out` cannot be written.
    """
    found = {int(one.name): one for one in (run / FOLDER).glob("*") if one.is_dir() and one.name.isdigit()}
    if not found:
        raise ConfigError(
            f"{str(run)!r} holds no trace; run with --set profile.trace=true, and give its directory"
        )
    attempt = max(found) if attempt is None else attempt
    if attempt not in found:
        raise ConfigError(
            f"attempt {attempt} has no trace; the attempts that have one: {', '.join(map(str, sorted(found)))}"
        )
    files, events = sorted(found[attempt].glob("*.json")), 0
    aside = out.with_name(f".{out.name}.tmp")
    try:
        with aside.open("w") as whole:
            whole.write('{"displayTimeUnit": "ms", "traceEvents": [')
            for path in files:
                for line in _events(path):
                    whole.write(("," if events else "") + "\n" + line)
                    events += 1
            whole.write("\n]}\n")
        aside.replace(out)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error
    return attempt, len(files), events


def _events(path: Path) -> Iterator[str]:
    """Lines of a rank's file that are events: not the brackets, nor a last one that a kill has cut."""
    with path.open() as file:
        for line in file:
            event = line.strip().rstrip(",")
            if event.startswith("{"):
                try:
                    json.loads(event)
                except ValueError:
                    return
                yield event
