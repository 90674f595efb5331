"""What both kinds of replay memory count in the same way."""

from __future__ import annotations

from hpcrl.data.priorities import PriorityTable
from hpcrl.data.replay_rings import Rings
from hpcrl.data.sum_tree import SumTree


class ReplayBooks:
    """Figures of a replay memory, from its rings and its table of priorities. Local."""

    rings: Rings
    table: PriorityTable

    @property
    def inserted(self) -> int:
        """Valid env_steps ever inserted, those of earlier attempts too."""
        return int(self.rings.inserted.sum())

    @property
    def tree(self) -> SumTree:
        """The priorities of all slots; 0 where no entry begins."""
        return self.table.tree

    @property
    def entries(self) -> int:
        """Transitions or sequences that can be drawn now; `sample` needs at least one."""
        return self.table.entries

    @property
    def stale_updates(self) -> int:
        """Priorities that came for entries replaced meanwhile, and were left out."""
        return self.table.stale

    @property
    def refused_priorities(self) -> int:
        """Priorities that were negative or not finite, and were left out."""
        return self.table.priorities.refused
