"""A page shared by a rank and its light parent."""

from __future__ import annotations

import json
import mmap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_STATIC, _PROGRESS, _DONE, _COUNTS, _PHASE, _WAITS = 0, 3072, 4095, 4096, 4128, 4608
_SIZE = 1 << 18
_BEATS, _WORK, _SHARED_PHASE = range(3)


class Board:
    """Who the rank is, what it is at and how far it has come; on the writer rank also how the whole run gets on."""

    def __init__(self) -> None:
        self.made = datetime.now(UTC).timestamp()
        """Seconds since the epoch: before the rank was started."""
        self._page = mmap.mmap(-1, _SIZE)
        self._counts = memoryview(self._page)[_COUNTS : _COUNTS + 24].cast("Q")

    def identify(self, **who: Any) -> None:
        """Write role, rank and run directory."""
        self._write(_STATIC, _PROGRESS, json.dumps(who))

    def report(self, progress: str) -> None:
        """Write the last progress."""
        self._write(_PROGRESS, _DONE, progress)

    def enter(self, phase: str, *, together: bool = False) -> None:
        """Write what the rank is at during its start, as in "it was ...". `together`: it may be waiting for others."""
        self._write(_PHASE, _WAITS, phase)
        self._counts[_SHARED_PHASE] = together

    def begin(self) -> None:
        """Start-up is over: from here on the rank beats."""
        self._counts[_BEATS] = 1

    def beat(self) -> None:
        """A sign of life; before `begin` only a sign that the rank waits for another one."""
        if self._counts[_BEATS]:
            self._counts[_BEATS] += 1
        else:
            self._counts[_SHARED_PHASE] = 1

    @property
    def beats(self) -> int:
        """Signs of life so far; 0 before `begin`."""
        return self._counts[_BEATS]

    def watch_run(self, *, on: bool) -> None:
        """Whether this rank hears of all work that is done in the run, on its writer only."""
        self._counts[_WORK] = on

    def work(self) -> None:
        """A sign of life, and of work: something other than waiting was done here, or heard of."""
        self.beat()
        if self._counts[_WORK]:
            self._counts[_WORK] += 1

    @property
    def works(self) -> int:
        """Signs of work in the run so far; 0 where and while this rank does not hear of all."""
        return self._counts[_WORK]

    def show_waits(self, summary: str, details: str) -> None:
        """Write what the ranks of the run wait for: in some words, and with their streams."""
        # a long summary must leave room for its end, and for some of the details
        self._write(_WAITS, _SIZE, f"{summary[: _SIZE // 8]}\n{details}")

    @property
    def waits(self) -> tuple[str, str]:
        """Summary and details of `show_waits`."""
        summary, _, details = self._read(_WAITS, _SIZE).partition("\n")
        return summary, details

    def done(self) -> None:
        """The rank has said all there is to say; its exit code is its own."""
        self._page[_DONE] = 1

    @property
    def is_done(self) -> bool:
        """Whether `done` was called."""
        return self._page[_DONE] == 1

    def who(self) -> dict[str, Any]:
        """What `identify` wrote, {} before."""
        text = self._read(_STATIC, _PROGRESS)
        try:
            values: dict[str, Any] = json.loads(text) if text else {}
        except ValueError:
            return {}
        return values

    def progress(self) -> str:
        """What `report` wrote last."""
        return self._read(_PROGRESS, _DONE)

    @property
    def phase(self) -> str:
        """What `enter` wrote last."""
        return self._read(_PHASE, _WAITS)

    @property
    def is_together(self) -> bool:
        """Whether the rank may be waiting for another one in this phase of its start."""
        return bool(self._counts[_SHARED_PHASE])

    def line(self, cause: str) -> str:
        """The one line that names role, rank, cause and last progress."""
        who = self.who()
        name = "rank (during start-up)"
        if "role" in who:
            name = f"{who['role']} {who['role_rank']} (rank {who['rank']} on {who['node']})"
        elif "rank" in who:
            name = f"rank {who['rank']} (during start-up on {who['node']})"
        last = f"; last progress: {self.progress()}" if self.progress() else ""
        words = f"hpcrl: {name} {cause}{last}".split()  # what HDF5 says of a full disk has several lines
        return " ".join(words)

    @property
    def is_mortal(self) -> bool:
        """Whether the run goes on when this rank dies."""
        return bool(self.who().get("mortal", False))

    @property
    def run_dir(self) -> Path | None:
        """The run directory, once there is one."""
        path = self.who().get("run_dir")
        return Path(path) if path else None

    def _write(self, start: int, end: int, text: str) -> None:
        content = text.encode()[: end - start - 1]
        self._page[start : start + len(content) + 1] = content + b"\0"

    def _read(self, start: int, end: int) -> str:
        return bytes(self._page[start:end]).split(b"\0")[0].decode(errors="replace")
