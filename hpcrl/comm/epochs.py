"""Counters in the shared memory of a node, by which its ranks tell each other how far they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcrl.comm.bell import Bells
from hpcrl.comm.window import Bytes, SharedWindow

_LINE = 128
"""Bytes that processors fetch together; words of different writers lie further apart."""


def words_nbytes(num_words: int) -> int:
    """Bytes for `num_words` words of one rank."""
    return -(-8 * num_words // _LINE) * _LINE


class Epochs:
    """`num_words` words of 64 bits for each rank of a node. A rank writes only its own; all read all.

    What a rank stored in the window before `reach` is seen by whoever found `all_reached` true. Neither waits.
    """

    def __init__(
        self, window: SharedWindow, places: Sequence[Bytes], num_words: int, rank: int, bells: Bells | None
    ) -> None:
        """`places`: [rank in node] uint8 of `words_nbytes(num_words)`. Local; a barrier must follow."""
        self._window = window
        self._words = [place[: 8 * num_words].data.cast("q") for place in places]
        self._mine = self._words[rank]
        self._others = [other for other in range(len(places)) if other != rank]
        self._bells = bells
        self._passed = [0] * num_words
        np.frombuffer(self._mine, np.int64)[...] = 0

    def reach(self, epoch: int, *words: int) -> None:
        """Announce `epoch`, larger than before, in some words; wakes the others if it was the last they waited for."""
        self._window.sync()
        for word in words:
            self._mine[word] = epoch
            self._passed[word] = 0
        self._window.sync()
        # of two ranks that come last at the same time, at least one sees both words
        if any(self.all_reached(epoch, word) for word in words):
            self.wake_others()

    def all_reached(self, epoch: int, word: int) -> bool:
        """Whether every rank has announced `epoch` of `word`, or a later one; to be asked only after this one has."""
        passed = self._passed[word]
        while passed < len(self._words) and self._words[passed][word] >= epoch:
            passed += 1
        self._passed[word] = passed
        if passed < len(self._words):
            return False
        self._window.sync()
        return True

    def reached(self, rank: int, epoch: int, word: int) -> bool:
        """Whether `rank` has announced `epoch` of `word`, or a later one."""
        if self._words[rank][word] < epoch:
            return False
        self._window.sync()
        return True

    def wake_others(self) -> None:
        """Ring the bells of the other ranks."""
        if self._bells is not None:
            for rank in self._others:
                self._bells.ring(rank)
