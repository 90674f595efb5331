"""A shard of the replay memory in which what has the lowest priority makes room, however old it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.config import ReplayConfig
from hpcrl.data.generators import generator_rows, load_generator_rows
from hpcrl.data.priorities import PriorityTable
from hpcrl.data.replay_beginnings import Beginnings
from hpcrl.data.replay_books import ReplayBooks
from hpcrl.data.replay_layout import ReplayLayout, waiting_layout, whole_transitions
from hpcrl.data.replay_memory import Sample
from hpcrl.data.replay_returns import Returns, gather_transitions
from hpcrl.data.replay_rings import Rings
from hpcrl.data.replay_state import load_counts, load_rings, rings_state, saved_powers, table_state
from hpcrl.data.replay_storage import allocate
from hpcrl.data.trajectory import Trajectory

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]

_KEPT = "kept/"


class RankedMemory(ReplayBooks):
    """n-step transitions in a table; new ones replace those of the lowest priority (replay.eviction=lowest_priority).

    As ReplayMemory from outside. What stays is scattered, so each transition is stored whole, with both of its
    observations: twice the memory. Until a transition is complete its env_steps wait in short rings. Rewards are
    clipped, scaled and summed up when it is. Local.
    """

    def __init__(
        self,
        layout: ReplayLayout,
        config: ReplayConfig,
        env_columns: Sequence[int],
        rng: np.random.Generator,
        *,
        gamma: float,
        reward_scale: float = 1.0,
        reward_clip: float | None = None,
    ) -> None:
        """As ReplayMemory. Raises ValueError for sequences, stacks of frames, and a capacity that is too small."""
        self.layout, self.config, self.env_columns, self.rng = layout, config, list(env_columns), rng
        self.kept = allocate(whole_transitions(layout, config), config.memory_map)
        """The transitions, and of each its environment and its generation: the number of all before it, and 1."""
        self.table = PriorityTable(layout.capacity, config)
        self.rings = Rings(waiting_layout(layout), config, env_columns)
        self.returns = Returns(layout.steps_ahead, gamma, reward_scale, reward_clip)
        self.beginnings = Beginnings(self.rings, layout, self.table.priorities, 1.0, False)
        self._transitions = 0
        """Transitions ever."""

    @property
    def size(self) -> int:
        """Valid env_steps held now: those that transitions begin with."""
        return self.table.entries

    @property
    def nbytes(self) -> int:
        """Bytes of everything allocated."""
        return sum(array.nbytes for array in self.kept.values()) + self.tree.nbytes + self.rings.nbytes

    def insert(self, trajectory: Trajectory) -> None:
        """As ReplayMemory.insert."""
        for block in self.rings.blocks(trajectory):
            self.rings.append(block)
            slots, priorities = self.beginnings.enter(block.columns)
            if len(slots):
                self._keep(slots, priorities)

    def sample(self, count: int, beta: float = 0.0, share: float = 1.0) -> Sample:
        """As ReplayMemory.sample."""
        slots, weights = self.table.draw(count, beta, share, self.rng)
        return Sample(slots, self.kept["generation"][slots], weights)

    def gather(self, sample: Sample, out: Trajectory, columns: slice) -> None:
        """As ReplayMemory.gather."""
        if not np.array_equal(self.kept["generation"][sample.slots], sample.generations):
            raise RuntimeError(
                "entries of the replay memory were replaced between their sampling and gathering"
            )
        for name, array in out.fields.items():
            if name != "weight":
                np.take(self.kept[name], sample.slots, axis=0, out=array[0, columns], mode="clip")
        out.fields["weight"][0, columns] = sample.weights

    def update_priorities(self, sample: Sample, td: npt.NDArray[np.float32]) -> None:
        """As ReplayMemory.update_priorities."""
        same = self.kept["generation"][sample.slots] == sample.generations
        self.table.write_back(sample.slots, same, td)

    def state(self) -> dict[str, Array]:
        """As ReplayMemory.state."""
        own = {
            "begun": self.beginnings.entered,
            "transitions": np.array([self._transitions], np.int64),
            "random": generator_rows([self.rng]),
        }
        kept = {_KEPT + name: array for name, array in self.kept.items()}
        return rings_state(self.rings, self.env_columns) | table_state(self.table) | kept | own

    def load(self, parts: Sequence[Mapping[str, Array]]) -> None:
        """As ReplayMemory.load. Where more was kept than there is room for, what has the highest priority stays."""
        if any("transitions" not in part for part in parts):
            raise ValueError(
                "the saved replay memory was one of replay.eviction=fifo; use that, or resume without the memory"
            )
        load_counts(self.table, self.env_columns, parts)
        for moved in load_rings(self.rings, self.layout, self.env_columns, parts):
            self.beginnings.entered[moved.column] = moved.part["begun"][moved.source] + moved.shift
        self._transitions = max(int(part["transitions"][0]) for part in parts)
        found = [(part, saved_powers(self.table, part)) for part in parts]
        mine = [np.flatnonzero((p > 0) & np.isin(part[_KEPT + "env"], self.env_columns)) for part, p in found]
        leaves = np.concatenate([p[one] for (_, p), one in zip(found, mine, strict=True)])
        chosen = np.sort(np.argsort(-leaves, kind="stable")[: self.layout.capacity])
        slots = np.arange(len(chosen))
        for part, one in zip(parts, mine, strict=True):
            if part["env_columns"].tolist() == self.env_columns:
                load_generator_rows([self.rng], part["random"])
                if len(part["leaves"]) == self.layout.capacity:
                    slots = one  # each where it was
        for name, array in self.kept.items():
            values = [part[_KEPT + name][one] for part, one in zip(parts, mine, strict=True)]
            array[slots] = np.concatenate(values)[chosen]
        self.tree.leaves[slots] = leaves[chosen]
        self.table.rebuild()

    def close(self) -> None:
        """As ReplayMemory.close."""
        del self.kept, self.rings, self.table, self.beginnings

    def _keep(self, slots: Slots, priorities: npt.NDArray[np.float64]) -> None:
        """Put the transitions that begin at slots of the rings where nothing, or what has the lowest priority, is."""
        count = len(slots)
        lowest = np.sort(np.argpartition(self.tree.leaves, count - 1)[:count])
        fields = {
            name: np.empty((1, count, *array.shape[1:]), array.dtype) for name, array in self.kept.items()
        }
        gather_transitions(self.rings, slots, self.returns, fields)
        fields["env"][0] = np.array(self.env_columns)[slots // self.rings.place.rows]
        fields["generation"][0] = np.arange(self._transitions, self._transitions + count)
        for name, array in self.kept.items():
            array[lowest] = fields[name][0]
        self._transitions += count
        self.table.replace(lowest, lowest, priorities)
