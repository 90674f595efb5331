"""Where entries of a replay memory begin, when all they need is there, and what priority they get then."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcrl.data.priorities import Priorities, sequence_priorities
from hpcrl.data.replay_layout import ReplayLayout, gives_priorities
from hpcrl.data.replay_rings import VALID, Rings
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
        place = rings.place
        self._limits = place.live, place.block, layout.sequence_steps, layout.steps_ahead
        self._at_resets = not cross_episodes
        self._given_by_actors = gives_priorities(layout)
        self.entered = np.zeros(layout.num_columns, np.int64)
        """Generation of each column up to which what can be an entry is one."""

    def enter(self, columns: Slots) -> tuple[Slots, npt.NDArray[np.float64]]:
        """Slots of what has become an entry in these columns, and its first priorities."""
        rings = self._rings
        slots = np.empty(int((rings.written[columns] - self.entered[columns]).sum()), np.int64)
        count = self._kernels.enter(columns, self._limits, rings.books, self._at_resets, self.entered, slots)
        slots = slots[:count]
        if not self._given_by_actors:
            return slots, np.full(count, self._priorities.newest)
        return slots, self._priorities.first(self._given(slots))

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
        self, column: int, slots: Slots, leaves: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Priorities of a column's newest env_steps, which were loaded: as saved, or that of new ones; else 0."""
        rings, kernels = self._rings, self._kernels
        until = kernels.complete(column, *self._limits[2:], rings.written, rings.last_end)
        begin = np.empty(len(slots), bool)
        kernels.begin(
            slots, rings.generations(slots), until, self._limits, rings.books, self._at_resets, begin
        )
        self.entered[column] = max(until, 0)
        return np.where(begin, np.where(leaves > 0, leaves, self._priorities.newest), 0.0)
