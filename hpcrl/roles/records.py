"""Rows of the result tables, from every rank to the one that writes them, by nonblocking messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcrl.comm.stream import Receiver, Sender, Tag, all_drained
from hpcrl.comm.world import World
from hpcrl.storage.runlog import RunLog
from hpcrl.storage.schema import TABLES, Rows

_BLOCK_BYTES = 64 * 1024
_HEADER_BYTES = 16
_NAMES = list(TABLES)
_SLOTS = 2

Sink = Callable[[str, Rows], None]


class RecordSender:
    """A rank's way to the writer. Point-to-point, nonblocking; rows wait here while both blocks travel."""

    def __init__(self, world: World) -> None:
        """Local; the writer opens the other end."""
        self._sender: Sender = world.sender(world.plan.writer, Tag.RECORDS)
        self._waiting: deque[tuple[str, Rows]] = deque()
        self._free = [np.zeros(_BLOCK_BYTES, np.uint8) for _ in range(_SLOTS)]

    def add(self, table: str, rows: Rows) -> None:
        """Hand over rows of a table; they are copied, and may change afterwards."""
        most = (_BLOCK_BYTES - _HEADER_BYTES) // rows.dtype.itemsize
        for start in range(0, len(rows), most):
            self._waiting.append((table, rows[start : start + most].copy()))
        self.poll()

    def poll(self) -> bool:
        """Progress: send what waits while a block is free; whether a block left."""
        progress = False
        self._sender.poll()
        while self._waiting and self._free:
            table, rows = self._waiting.popleft()
            block = self._free.pop()
            block[:_HEADER_BYTES].view(np.int64)[:] = _NAMES.index(table), len(rows)
            payload = np.ascontiguousarray(rows).view(np.uint8)
            block[_HEADER_BYTES : _HEADER_BYTES + payload.size] = payload
            self._sender.send(block, on_sent=partial(self._free.append, block))
            progress = True
        return progress

    @property
    def drained(self) -> bool:
        """Send the rest and close; True when all of it has left."""
        self.poll()
        if not self._waiting:
            self._sender.close()
        return not self._waiting and self._sender.drained


class RecordReceiver:
    """The writer's end: blocks of rows from every other rank."""

    def __init__(self, world: World, sink: Sink) -> None:
        """Local. `sink` is called with each block's rows, which it must copy."""
        self._sink = sink
        self._receivers: list[Receiver] = [
            world.receiver(rank, Tag.RECORDS) for rank in range(world.comm.size) if rank != world.rank
        ]
        for receiver in self._receivers:
            for _ in range(_SLOTS):
                receiver.post(np.zeros(_BLOCK_BYTES, np.uint8))

    def poll(self) -> bool:
        """Take in what has come; whether anything had."""
        progress = False
        for receiver in self._receivers:
            while (block := receiver.poll()) is not None:
                progress = True
                index, count = block[:_HEADER_BYTES].view(np.int64)
                name = _NAMES[int(index)]
                dtype = TABLES[name].dtype
                self._sink(name, block[_HEADER_BYTES:][: int(count) * dtype.itemsize].view(dtype))
                receiver.post(block)
        return progress

    @property
    def drained(self) -> bool:
        """Every other rank has closed, and all it sent is here."""
        self.poll()
        return all_drained(self._receivers)

    def close(self) -> None:
        """Take the posted buffers back; only after `drained`."""
        for receiver in self._receivers:
            receiver.cancel()


class ResultWriter:
    """Rank-local owner of the result file and of what a person watches. Never a learner in its compute."""

    def __init__(self, runlog: RunLog, watch: Sink) -> None:
        """`watch` sees every row as it is written (the progress line)."""
        self._runlog = runlog
        self._watch = watch
        self._env_steps = 0
        self._start = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this attempt began."""
        return time.perf_counter() - self._start

    def start_clock(self) -> None:
        """Training begins now."""
        self._start = time.perf_counter()

    def add(self, table: str, rows: Rows) -> None:
        """Write rows; the writer's clock and trained env_steps are filled in where senders cannot know them."""
        rows = rows.copy()
        names = rows.dtype.names or ()
        if "time_s" in names:
            rows["time_s"] = self.elapsed_s
        if table == "updates":
            self._env_steps = int(rows["env_steps"][-1])
        elif table == "episodes":
            rows["env_steps"] = self._env_steps
        self._runlog.append(table, rows)
        self._watch(table, rows)
        self._runlog.maybe_flush()

    def close(self) -> None:
        """Bring everything to disk."""
        self._runlog.close()


def table_row(table: str, **values: Any) -> Rows:
    """One row of a table; metrics the schema does not know are left out."""
    known = {column.name for column in TABLES[table].columns}
    return TABLES[table].row(**{name: value for name, value in values.items() if name in known})
