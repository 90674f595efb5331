"""Where entries of a replay memory begin, when all they need is there, and what priority they get then."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcrl.data.priorities import Priorities, sequence_priorities
from hpcrl.data.replay_layout import ReplayLayout, gives_priorities
from hpcrl.data.replay_rings import GAP, VALID, Rings
from hpcrl.data.specs import PRIORITY

Slots = npt.NDArray[np.int64]


class Beginnings:
    """Entries by the slot of their first env_step: transitions of valid ones, or sequences. Local.

    A transition is complete when n env_steps are there, or its episode's end; a sequence when all of its L are.
    """

    def __init__(
        self, rings: Rings, layout: ReplayLayout, priorities: Priorities, mix: float, cross_episodes: bool
    ) -> None:
        """mix, cross_episodes: as of ReplayMemory."""
        from hpcrl.data import replay_kernels

        self._rings, self._layout, self._priorities = rings, layout, priorities
        self._mix, self._cross_episodes = mix, cross_episodes
        self._kernels = replay_kernels
        self.entered = np.zeros(layout.num_columns, np.int64)
        """Generation of each column up to which what can be an entry is one."""

    def enter(self, columns: Slots) -> tuple[Slots, npt.NDArray[np.float64]]:
        """Slots of what has become an entry in these columns, and its first priorities."""
        rings, written = self._rings, self._rings.written[columns]
        until = self._complete(columns)
        begin = np.maximum(self.entered[columns], written - rings.place.live)
        self.entered[columns] = np.maximum(until, self.entered[columns])
        longest = max(int((until - begin).max(initial=0)), 0)
        generations = begin[:, None] + np.arange(longest)
        slots = rings.slots(columns[:, None], generations)
        slots = slots[(generations < until[:, None]) & self._may_begin(slots, generations)]
        if not gives_priorities(self._layout):
            return slots, np.full(len(slots), self._priorities.newest)
        return slots, self._priorities.first(self._given(slots))

    def _complete(self, columns: Slots) -> Slots:
        """Up to which generation everything that an entry of these columns would need is there."""
        written = self._rings.written[columns]
        if self._layout.sequence_steps:
            return written - self._layout.sequence_steps + 1
        newest: Slots = np.maximum(written - self._layout.steps_ahead, self._rings.last_end[columns])
        return newest + 1

    def _may_begin(self, slots: Slots, generations: Slots) -> npt.NDArray[np.bool_]:
        """Which env_steps an entry begins at."""
        flags = self._rings.flags[slots]
        valid: npt.NDArray[np.bool_] = (flags & VALID) != 0
        if not self._layout.sequence_steps:
            return valid
        begins: npt.NDArray[np.bool_] = generations % self._rings.place.block == 0
        if not self._cross_episodes:
            begins |= flags == 0  # a reset step
        after = np.zeros_like(valid)
        if self._layout.sequence_steps > 1:  # then the env_step after it is there
            after = (self._rings.flags[self._rings.after(slots, 1)] & VALID) != 0
        begins &= ((flags & GAP) == 0) & (valid | after)
        return begins

    def _given(self, slots: Slots) -> npt.NDArray[np.float32]:
        """|TD error| that the actors gave these entries."""
        td, length = self._rings.rows[PRIORITY.name], self._layout.sequence_steps
        if not length:
            given: npt.NDArray[np.float32] = td[slots]
            return given
        return sequence_priorities(
            td[self._rings.after(slots, np.arange(length)[:, None])],
            (self.sequence_flags(slots) & VALID) != 0,
            self._mix,
        )

    def sequence_flags(self, slots: Slots) -> npt.NDArray[np.uint8]:
        """Flags [L, count] of the sequences that begin at slots, 0 for env_steps that do not count."""
        flags = np.empty((self._layout.sequence_steps, len(slots)), np.uint8)
        rings = self._rings
        self._kernels.sequence_flags(slots, rings.place.rows, rings.flags, self._cross_episodes, flags)
        return flags

    def enter_loaded(
        self, column: int, slots: Slots, generations: Slots, leaves: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Priorities of env_steps of a column that were loaded: `leaves`, that of new ones for new entries, else 0."""
        complete = int(self._complete(np.array([column]))[0])
        oldest = int(self._rings.written[column]) - self._rings.place.live
        inside = (generations >= oldest) & (generations < complete)
        begin = np.zeros(len(slots), bool)
        begin[inside] = self._may_begin(slots[inside], generations[inside])
        self.entered[column] = max(complete, 0)
        return np.where(begin, np.where(leaves > 0, leaves, self._priorities.newest), 0.0)
