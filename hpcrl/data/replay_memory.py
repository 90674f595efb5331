"""One shard of the replay memory: what actors sent, and samples of it. Local: no MPI, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.config import ReplayConfig
from hpcrl.data.generators import generator_rows, load_generator_rows
from hpcrl.data.priorities import PriorityTable
from hpcrl.data.replay_beginnings import Beginnings
from hpcrl.data.replay_books import ReplayBooks
from hpcrl.data.replay_layout import ReplayLayout, predicted_bytes, stored_fields
from hpcrl.data.replay_returns import Returns, gather_transitions
from hpcrl.data.replay_rings import TERMINATED, TRUNCATED, VALID, Block, Rings
from hpcrl.data.replay_state import load_counts, load_rings, rings_state, saved_powers, table_state
from hpcrl.data.trajectory import Trajectory

__all__ = ["ReplayLayout", "ReplayMemory", "Sample", "predicted_bytes"]

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was drawn: entries of the memory, transitions or sequences."""

    slots: npt.NDArray[np.int64]
    """[count], in rising order"""
    generations: npt.NDArray[np.int64]
    """[count]: what a slot held when it was drawn; another number is there once it was replaced."""
    weights: npt.NDArray[np.float32]
    """[count]: (share * P)^-beta with P the probability within this shard; not divided by the largest."""


class ReplayMemory(ReplayBooks):
    """A ring of env_steps for each environment, with n-step transitions or sequences drawn from it.

    Each observation is stored once, and of a stack of frames (config.frame_stack) only the newest frame. An entry is
    known by the slot of its first env_step, and has a priority once all it needs is there.
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
        priority_mix: float = 0.9,
        cross_episodes: bool = False,
    ) -> None:
        """`env_columns`: global indices of the environments, layout.num_columns of them.

        priority_mix: eta of the first priority of a sequence, eta * max + (1 - eta) * mean of its valid env_steps'.
        cross_episodes: a sequence goes on after an episode's end (the reset step is not valid, the state begins
        anew there); False: its env_steps after an end are not valid, and sequences begin at every reset step, too.
        Raises ValueError naming the keys where the capacity is too small for a single sample.
        """
        from hpcrl.data import replay_kernels

        self._kernels = replay_kernels
        if len(env_columns) != layout.num_columns:
            raise ValueError(f"{len(env_columns)} environments for a layout of {layout.num_columns}")
        self.layout, self.config, self.env_columns, self.rng = layout, config, list(env_columns), rng
        self.rings = Rings(layout, config, env_columns)
        self.table = PriorityTable(self.rings.place.total_rows, config)
        self.returns = Returns(layout.steps_ahead, gamma, reward_scale, reward_clip)
        self.beginnings = Beginnings(self.rings, layout, self.table.priorities, priority_mix, cross_episodes)
        self.size = 0
        """Valid env_steps held now."""

    @property
    def nbytes(self) -> int:
        """Bytes of everything allocated."""
        return self.rings.nbytes + self.tree.nbytes

    def insert(self, trajectory: Trajectory) -> None:
        """Copy the used columns of a trajectory into the rings; what is oldest there makes room.

        Its environments are those of its header. Where its first observation is not the last one of that environment
        (env_steps between were lost), the env_step before counts as truncated.
        """
        for block in self.rings.blocks(trajectory):
            self._append(block)

    def sample(self, count: int, beta: float = 0.0, share: float = 1.0) -> Sample:
        """Draw `count` entries with replacement, one from each of `count` equal parts of the priorities' sum.

        share: the part of the whole batch that this shard fills; its entries are `share` as likely as by P alone.
        Raises RuntimeError where there is no entry.
        """
        slots, weights = self.table.draw(count, beta, share, self.rng)
        return Sample(slots, self.rings.generations(slots), weights)

    def gather(self, sample: Sample, out: Trajectory, columns: slice) -> None:
        """Write what was drawn to the `columns` of `out` (of transition_spec or sequence_spec).

        Before the next `insert`: raises RuntimeError for an entry that is not there any more.
        """
        if not np.array_equal(self.rings.generations(sample.slots), sample.generations):
            raise RuntimeError(
                "entries of the replay memory were replaced between their sampling and gathering"
            )
        fields = {name: array[:, columns] for name, array in out.fields.items()}
        fields["weight"][0] = sample.weights
        if self.layout.sequence_steps:
            self._gather_sequences(sample.slots, fields)
        else:
            gather_transitions(self.rings, sample.slots, self.returns, fields)

    def update_priorities(self, sample: Sample, td: npt.NDArray[np.float32]) -> None:
        """New priorities |TD error| [count] of what was drawn before; the last one counts for an entry drawn twice."""
        same = self.rings.generations(sample.slots) == sample.generations
        same &= self.tree.leaves[sample.slots] > 0
        self.table.write_back(sample.slots, same, td)

    def state(self) -> dict[str, Array]:
        """Everything, for a checkpoint: views of the memory itself, to be written before the next call."""
        random = {"random": generator_rows([self.rng])}
        return rings_state(self.rings, self.env_columns) | table_state(self.table) | random

    def load(self, parts: Sequence[Mapping[str, Array]]) -> None:
        """Take this shard's environments out of what the shards of another attempt had, however many those were.

        The random stream goes on where one of them had the same environments; else it stays as given. Raises ValueError
        naming the keys where that cannot be.
        """
        if any("transitions" in part for part in parts):
            raise ValueError(
                "the saved replay memory was one of replay.eviction=lowest_priority; use that, or resume without the "
                "memory"
            )
        load_counts(self.table, self.env_columns, parts)
        for moved in load_rings(self.rings, self.layout, self.env_columns, parts):
            leaves = saved_powers(self.table, moved.part)[moved.old]
            self.tree.leaves[moved.new] = self.beginnings.enter_loaded(moved.column, moved.new, leaves)
            self.size += int(np.count_nonzero(self.rings.flags[moved.new] & VALID))
        self.table.rebuild()
        for part in parts:
            if part["env_columns"].tolist() == self.env_columns:
                load_generator_rows([self.rng], part["random"])

    def close(self) -> None:
        """Free the memory and the files it lies in."""
        del self.rings, self.table, self.beginnings

    def _append(self, block: Block) -> None:
        """Store env_steps; what is too old is no entry from here on, and what has all it needs is one."""
        rings, place = self.rings, self.rings.place
        old = np.empty(block.columns.size * place.block, np.int64)
        count, valid = self._kernels.leaving(
            block.columns, place.live, place.block, place.rows, rings.written, rings.flags, old
        )
        held = rings.inserted[block.columns].sum()
        rings.append(block)
        self.size += int(rings.inserted[block.columns].sum() - held) - valid
        self.table.replace(old[:count], *self.beginnings.enter(block.columns))

    def _gather_sequences(self, slots: Slots, fields: dict[str, Array]) -> None:
        rings, block = self.rings, self.rings.place.block
        flags = self.beginnings.sequence_flags(slots)
        for name, bit in (("terminated", TERMINATED), ("truncated", TRUNCATED), ("valid", VALID)):
            fields[name][...] = flags & bit
        for step in range(len(flags)):
            rings.read_observations(rings.after(slots, step), fields["obs"][step])
        rings.read_observations(rings.after(slots, len(flags)), fields["obs"][-1])
        ends_now = rings.generations(slots) + len(flags) == rings.written[slots // rings.place.rows]
        rings.read_newest(slots, np.flatnonzero(ends_now), fields["obs"][-1])
        for field in stored_fields(self.layout):
            if field.start_only:
                fields[field.name][0] = rings.rows[field.name][slots // block]
            else:
                places = rings.after(slots, np.arange(len(flags))[:, None])
                fields[field.name][...] = rings.rows[field.name][places]
        self.returns.scale(fields["reward"])
