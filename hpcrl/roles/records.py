"""Rows of the result tables, from every rank to the one that writes them, by nonblocking messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from hpcrl.comm.stream import Receiver, Sender, Tag, all_drained
from hpcrl.comm.world import World
from hpcrl.config.hops import Timed
from hpcrl.roles.timers import Timers
from hpcrl.storage.schema import TABLES, Rows

if TYPE_CHECKING:
    from hpcrl.roles.account import Trained

_BLOCK_BYTES = 64 * 1024
_HEADER_BYTES = 16
_NAMES = list(TABLES)
_SLOTS = 2
_NOTE = -1
"""Stands for a table where a block is no rows but a note."""
_MARK = -2
"""Stands for a table where a block is no rows but a mark, whose number is its count."""
_SIGN_BYTES = 8
_LONGEST_WAIT_S = 0.1

Sink = Callable[[str, Rows], None]


class RecordSender:
    """A rank's way to the writer. Point-to-point, nonblocking.

    Rows wait here for others of their table, until they fill a block or the oldest is `_LONGEST_WAIT_S` old, and while
    both blocks travel. What waited together leaves before anything that came later, and of that the updates last: so
    whenever a run is killed, an update in the file has its rows of other tables there too.
    """

    def __init__(self, world: World, timed: Timed = nullcontext) -> None:
        """Local; the writer opens the other end. `timed`: around what is sent."""
        self._timed = timed
        self._sender: Sender = world.sender(world.plan.writer, Tag.RECORDS)
        self._signs: Sender = world.sender(world.plan.writer, Tag.WORK, _SIGN_BYTES)
        self._sign = np.zeros(1, np.int64)
        self._waiting: dict[str, list[Rows]] = {}
        self._leaving: dict[str, list[Rows]] = {}
        self._waiting_bytes = 0
        self._waiting_since = 0.0
        self.marks: list[int] = []
        """Those that are still to leave, which they do in `poll`."""
        self._closing = False
        self._free = [np.zeros(_BLOCK_BYTES, np.uint8) for _ in range(_SLOTS)]

    def add(self, table: str, rows: Rows) -> None:
        """Hand over rows of a table; they are copied, and may change afterwards."""
        if not len(rows):
            return
        if not self._waiting:
            self._waiting_since = time.perf_counter()
        self._waiting.setdefault(table, []).append(rows.copy())
        self._waiting_bytes += rows.nbytes
        self.poll()

    def sign(self) -> bool:
        """Tell the writer of work; whether it could be told: the last sign has left and this end is not closing.

        In a message so small that it arrives while this rank is in a long env_step, and does not poll.
        """
        if self._closing or self._signs.poll():
            return False
        self._signs.send(self._sign)
        return True

    def note(self, text: str) -> bool:
        """Send the writer a note at once; whether it could be sent: a block is free and this end not closing."""
        if self._closing or not self._free:
            return False
        said = np.frombuffer(text.encode()[: _BLOCK_BYTES - _HEADER_BYTES], np.uint8)
        self._send(_NOTE, len(said), said)
        return True

    def mark(self, number: int) -> None:
        """Tell the writer that it has every row up to here; they leave at once, and the mark after them."""
        self.marks.append(number)
        self.poll()

    def poll(self) -> bool:
        """Progress: send what is due while a block is free; whether a block left."""
        self._sender.poll()
        if not self._free or not (self._leaving or self.marks or self._due):
            return False
        with self._timed("records.send"):
            while self._free and (self._leaving or self._due):
                self._send_block()
            while self._free and self.marks:
                self._send(_MARK, self.marks.pop(0), np.zeros(0, np.uint8))
        return True

    @property
    def _due(self) -> bool:
        """Whether rows wait that are to leave now."""
        if not self._waiting:
            return False
        late = time.perf_counter() - self._waiting_since >= _LONGEST_WAIT_S
        return self._closing or bool(self.marks) or late or self._waiting_bytes >= _BLOCK_BYTES

    def _send_block(self) -> None:
        if not self._leaving:
            names = sorted(self._waiting, key=lambda name: name == "updates")
            self._leaving = {name: self._waiting[name] for name in names}
            self._waiting, self._waiting_bytes = {}, 0
        table = next(iter(self._leaving))
        rows = np.concatenate(self._leaving.pop(table))
        most = (_BLOCK_BYTES - _HEADER_BYTES) // rows.dtype.itemsize
        if len(rows) > most:  # the rest stays first in line
            self._leaving = {table: [rows[most:]], **self._leaving}
            rows = rows[:most]
        self._send(_NAMES.index(table), len(rows), rows.view(np.uint8))

    def _send(self, kind: int, count: int, content: npt.NDArray[np.uint8]) -> None:
        block = self._free.pop()
        block[:_HEADER_BYTES].view(np.int64)[:] = kind, count
        block[_HEADER_BYTES : _HEADER_BYTES + content.nbytes] = content
        self._sender.send(block, on_sent=partial(self._free.append, block))

    @property
    def drained(self) -> bool:
        """Send the rest and close; True when all of it has left."""
        self._closing = True
        self._signs.close()
        self.poll()
        ended = not (self._waiting or self._leaving or self.marks)
        if ended:
            self._sender.close()
        return ended and self._sender.drained and self._signs.drained


class RecordReceiver:
    """The writer's end: blocks of rows, notes, marks, and signs of work, from every other rank."""

    marks: ClassVar[tuple[int, ...]] = ()
    """As of RecordSender: none has to leave."""

    def __init__(
        self,
        world: World,
        sink: Sink,
        take_note: Callable[[int, str], bool] = lambda rank, text: True,
        take_mark: Callable[[int, int], None] = lambda rank, number: None,
    ) -> None:
        """Local. `sink` is called with each block's rows, which it must copy.

        `take_note` with the rank and text of each note, "" for a sign of work; it says whether that is progress.
        `take_mark` with the rank and number of each mark, once all rows before it have gone to `sink`.
        """
        self._sink, self._take_note, self._take_mark = sink, take_note, take_mark
        others = [rank for rank in range(world.comm.size) if rank != world.rank]
        self._receivers: list[Receiver] = [world.receiver(rank, Tag.RECORDS) for rank in others]
        self._signs: list[Receiver] = [world.receiver(rank, Tag.WORK, _SIGN_BYTES) for rank in others]
        for _ in range(_SLOTS):
            for receiver in self._receivers:
                receiver.post(np.zeros(_BLOCK_BYTES, np.uint8))
            for receiver in self._signs:
                receiver.post(np.zeros(1, np.int64))

    def poll(self) -> bool:
        """Take in what has come; whether anything had."""
        progress = False
        for receiver in self._signs:
            while (sign := receiver.poll()) is not None:
                progress |= self._take_note(receiver.source, "")
                receiver.post(sign)
        for receiver in self._receivers:
            while (block := receiver.poll()) is not None:
                index, count = block[:_HEADER_BYTES].view(np.int64).tolist()
                content = block[_HEADER_BYTES:]
                if index == _NOTE:
                    text = content[:count].tobytes().decode(errors="replace")
                    progress |= self._take_note(receiver.source, text)
                elif index == _MARK:
                    self._take_mark(receiver.source, count)
                    progress = True
                else:
                    progress = True
                    dtype = TABLES[_NAMES[index]].dtype
                    self._sink(_NAMES[index], content[: count * dtype.itemsize].view(dtype))
                receiver.post(block)
        return progress

    @property
    def drained(self) -> bool:
        """Every other rank has closed, and all it sent is here."""
        self.poll()
        return all_drained([*self._receivers, *self._signs])

    def close(self) -> None:
        """Take the posted buffers back; only after `drained`."""
        for receiver in (*self._receivers, *self._signs):
            receiver.cancel()


def table_row(table: str, **values: Any) -> Rows:
    """One row of a table; metrics the schema does not know are left out."""
    known = {column.name for column in TABLES[table].columns}
    return TABLES[table].row(**{name: value for name, value in values.items() if name in known})


def record_update(
    record: Sink, update: int, trained: Trained, metrics: dict[str, float], *, applied: bool
) -> None:
    """Hand the rows of one update to the writer."""
    lag = {"lag_min": -1, "lag_mean": float("nan"), "lag_max": -1} | trained.lag
    row = table_row(
        "updates",
        update=update,
        env_steps=trained.env_steps,
        applied=applied,
        parameter_version=update,
        valid_fraction=trained.valid_fraction,
        rows_checksum=trained.rows_checksum,
        **lag,
        **metrics,
    )
    rows = trained.lag_rows
    rows["update"] = update
    record("lag", rows)
    columns = row.dtype.names or ()
    more = {name: value for name, value in metrics.items() if name not in columns}
    record(
        "metrics",
        TABLES["metrics"].rows(len(more), update=update, name=list(more), value=list(more.values())),
    )
    # Last: an update in the file has its lags there too, also after a kill.
    record("updates", row)


def record_sums(record: Sink, rank: int, timers: Timers, sent_bytes: int) -> None:
    """Hand the writer what a learner on world rank `rank` gave to sums over the learners."""
    row = table_row(
        "edges",
        stream="sums",
        source=rank,
        dest=-1,
        messages=timers("reducer.mean_gradients").count + timers("reducer.sum_counts").count,
        bytes=sent_bytes,
        wait_s=timers("reducer.wait").seconds,
    )
    record("edges", row)
