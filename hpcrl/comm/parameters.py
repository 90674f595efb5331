"""Versions of a parameter vector in memory that the ranks of a node share: one writer, many readers, nobody waits.

The writer fills a buffer that nobody uses and then names it in the word `current`. A reader writes the number of a
buffer into its pin word, and looks whether that buffer still holds what it wants; a buffer that is pinned is not
written to. So a reader may use a version where it lies for as long as it likes, and never sees half of two versions:

    writer                                        reader
    version of the buffer := none                 pin := buffer
    fence                                         fence
    look at every pin; somebody's: put it back    look at the version of the buffer; another: unpin, try later
    write the vector, fence, version, current     read the vector

Each side stores, then fences, then loads what the other stores: at least one of them sees the other, and gives way.

Nothing here can deadlock, because nothing here waits. That a publication which found no buffer can be made up later is
up to the readers: a pin must end without any newer version. It does when a reader pins only while it works on a
trajectory and unpins before it sends that trajectory off, because such work waits for no version: an idle reader, who
may wait for the very version that is owed, holds no pin, whether it polls or not.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.rows import aligned
from hpcrl.comm.window import PAGE, Bytes, SharedWindow

Vector = npt.NDArray[np.float32]

_LINE = 128
"""Bytes between words that different ranks write or poll."""
_WORDS = _LINE // 8
_NONE = -1


class ParameterWindow:
    """Buffers for float32 vectors of one size, and what its writer does with them.

    Memory: on each rank a line for its pin and whether it waits, and one for each of its `words`, which the protocols
    above use; on the writer also a line for `current`, one for the version of each buffer, and the buffers, which begin
    at pages.
    """

    def __init__(
        self,
        node: MPI.Intracomm | None,
        writer: int,
        size: int,
        *,
        buffers: int = 3,
        retain: int = 1,
        words: int = 0,
    ) -> None:
        """Collective over `node`, whose ranks share memory; None: this rank alone, in memory of its own.

        Args:
            node: Owned by the caller.
            writer: Rank in `node` that publishes; any rank may read.
            size: Entries of a vector.
            buffers: Versions held, the one being written included; at least 3.
            retain: This many of the newest versions are never overwritten, pinned or not; at most buffers - 1.
            words: Additional int64 words of each rank, 0 at first.
        """
        self.buffers, self._retain = buffers, retain
        self._by_age = list(range(buffers))
        """On the writer: buffers, the one with the newest version last."""
        self.writer = writer
        self.rank = 0 if node is None else node.rank
        self._lines = 1 + words
        first, stride, nbytes = self._layout(size, buffers, words)
        wanted = nbytes if self.rank == writer else self._lines * _LINE
        self._window: SharedWindow | None = None
        segments: tuple[Bytes, ...]
        if node is None or node.size == 1:
            segments = (aligned(wanted),)
        else:
            self._window = SharedWindow(node, wanted)
            segments = self._window.segments
        self._memory = [segment.data.cast("q") for segment in segments]
        self._control = self._memory[writer]
        store = segments[writer]
        starts = [first + index * stride for index in range(buffers)]
        self.vectors = tuple(store[start : start + 4 * size].view(np.float32) for start in starts)
        """[buffer] float32 [size]; the writer writes to a buffer between `claim` and `announce`."""
        self._places = [(self._lines + 1 + index) * _WORDS for index in range(buffers)]
        """Of the versions in `_control`."""
        self.version_bytes = tuple(store[8 * place : 8 * place + 8] for place in self._places)
        """[buffer] uint8 [8]: its version, an int64, to be sent along with it."""
        mine = self._memory[self.rank]
        mine[0], mine[1] = _NONE, 0
        for word in range(words):
            self.set_word(word, 0)
        if self.rank == writer:
            for line in range(self._lines, self._lines + 1 + buffers):
                mine[line * _WORDS] = _NONE
        if node is not None:
            node.Barrier()

    @staticmethod
    def nbytes(size: int, buffers: int = 3, words: int = 0) -> int:
        """Memory that the writer takes. Pure."""
        return ParameterWindow._layout(size, buffers, words)[2]

    def claim(self, keep: Collection[int] = ()) -> int | None:
        """Take a buffer that is free, to be overwritten; None while none is. Local, on the writer.

        Free: not among the `retain` newest, pinned by no reader, not in `keep`. The newest of these is taken, so that
        no more buffers are ever touched than are needed. What was claimed must be announced before the next claim.
        """
        for index in reversed(self._by_age[: self.buffers - self._retain]):
            if index in keep:
                continue
            place = self._places[index]
            version, self._control[place] = self._control[place], _NONE
            self.sync()  # no version before the look at the pins
            if index not in [memory[0] for memory in self._memory]:
                self.sync()  # the look before the first byte that is written
                return index
            self._control[place] = version
        return None

    def announce(self, index: int, version: int) -> None:
        """Make the claimed buffer, now filled, the newest version. Local, on the writer; versions rise from 0."""
        self._by_age.remove(index)
        self._by_age.append(index)
        self.sync()  # the vector before its version
        self._control[self._places[index]] = version
        self._control[self._lines * _WORDS] = version * self.buffers + index
        self.sync()  # the announcement before the look at who waits for it

    def word(self, rank: int, word: int) -> int:
        """A word of `rank` (of the node). Local; `sync` before reading what it announces."""
        return self._memory[rank][(1 + word) * _WORDS]

    def set_word(self, word: int, value: int) -> None:
        """Set a word of this rank. Local; `sync` after writing what it announces."""
        self._memory[self.rank][(1 + word) * _WORDS] = value

    def sync(self) -> None:
        """Full memory fence, where others could look. Local."""
        if self._window is not None:
            self._window.sync()

    def forget(self, rank: int) -> None:
        """A reader (rank of the node) has died: what it pinned is free. Local, on the writer."""
        self._memory[rank][0] = _NONE

    def close(self) -> None:
        """Give the memory back; nobody may use a vector afterwards. Collective over the node."""
        self.vectors = self.version_bytes = ()
        for memory in self._memory:
            memory.release()
        if self._window is not None:
            self._window.close()

    def waiting(self, rank: int) -> bool:
        """Whether a reader has asked in vain, and may sleep. Local; for the writer, after `announce`."""
        return self._memory[rank][1] != 0

    def set_waiting(self, waiting: bool) -> None:
        """Note that this rank asked in vain, before it asks once more; or that it does not wait. Local."""
        self._memory[self.rank][1] = waiting
        self.sync()

    def newest(self) -> tuple[int, int]:
        """(version, buffer) of the newest version, (-1, ...) before the first. Local."""
        version, index = divmod(self._control[self._lines * _WORDS], self.buffers)
        return version, index

    def version(self, index: int) -> int:
        """Version that a buffer holds, -1 while it is written to. Local."""
        return self._control[self._places[index]]

    def set_pin(self, index: int | None) -> None:
        """Pin a buffer for this rank, or none. Local; for ParameterReader."""
        self._memory[self.rank][0] = _NONE if index is None else index

    @staticmethod
    def _layout(size: int, buffers: int, words: int) -> tuple[int, int, int]:
        """(start of the first buffer, bytes between buffers, bytes of all)."""
        first, stride = (-(-nbytes // PAGE) * PAGE for nbytes in ((2 + words + buffers) * _LINE, 4 * size))
        return first, stride, first + buffers * stride


class ParameterReader:
    """A reader of a ParameterWindow. Local. Use: `acquire`, read `vector` as long as needed, `release`."""

    def __init__(self, window: ParameterWindow) -> None:
        self._window = window
        self._pinned = self._waiting = False
        self.version = -1
        """Version acquired last."""
        self.vector: Vector = np.zeros(0, np.float32)
        """float32 [size]: that version, in the window. Valid until `release`; not to be written to."""

    def acquire(self, at_least: int, *, exactly: bool = False) -> bool:
        """Release what is held and pin the newest version; False while it is below `at_least`, or must be retried.

        `exactly`: pin version `at_least` and no newer one. Raises RuntimeError when that has been overwritten.
        """
        self.release()
        version, index = self._window.newest()
        if version < max(at_least, 0) and not self._waiting:
            self._wait(True)
            version, index = self._window.newest()
        if version < max(at_least, 0):
            return False
        if self._waiting:
            self._wait(False)
        if exactly and version > at_least:
            version, index = at_least, self._look_up(at_least, version)
        self._window.set_pin(index)
        self._pinned = True
        self._window.sync()  # the pin before the look at the version
        if self._window.version(index) != version:
            self.release()
            return False
        self._window.sync()  # the look before the first entry that is read
        self.version, self.vector = version, self._window.vectors[index]
        return True

    def release(self) -> None:
        """Unpin: the vector may be overwritten from here on. Does nothing when nothing is held."""
        if self._pinned:
            self._window.sync()  # all has been read
            self._window.set_pin(None)
            self._pinned = False

    def _wait(self, waiting: bool) -> None:
        self._waiting = waiting
        self._window.set_waiting(waiting)

    def _look_up(self, wanted: int, newest: int) -> int:
        for index in range(self._window.buffers):
            if self._window.version(index) == wanted:
                return index
        raise RuntimeError(
            f"parameter version {wanted} was asked for when {newest} had been published and it was gone"
        )
