"""Rings of env_steps, one for each environment: the storage under a replay memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcrl.config import ReplayConfig
from hpcrl.data.replay_frames import StackedFrames, WholeObservations, words
from hpcrl.data.replay_layout import (
    ReplayLayout,
    geometry,
    gives_priorities,
    observation_field,
    row_arrays,
    stored_fields,
)
from hpcrl.data.replay_storage import allocate
from hpcrl.data.specs import PRIORITY
from hpcrl.data.trajectory import Trajectory

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]

TERMINATED, TRUNCATED, VALID, GAP = 1, 2, 4, 8
"""Bits of a row's flags. GAP: a filling row where env_steps of the environment were lost."""
END = TERMINATED | TRUNCATED


class Block(NamedTuple):
    """unroll_length env_steps of some columns."""

    columns: Slots
    """[B]"""
    fields: dict[str, Array]
    """[T, B, ...] (obs: [T+1])"""
    fills_gap: bool
    """Nothing happened in them: env_steps were lost."""


class Rings:
    """env_steps as they came, reset steps among them. Local.

    A row is known by its slot; what it holds by its generation, the number of that env_step among all of its column.
    Trajectories begin at generations that are multiples of unroll_length, and do not wrap.
    """

    def __init__(self, layout: ReplayLayout, config: ReplayConfig, env_columns: Sequence[int]) -> None:
        from hpcrl.data import replay_kernels

        self._kernels = replay_kernels
        self.place = place = geometry(layout, config)
        self._steps = np.arange(place.block)[:, None]
        self.rows = rows = allocate(row_arrays(layout, config), config.memory_map)
        """Arrays by name, with an entry for every slot, or (start_only) for every trajectory."""
        self.flags = rows["flags"]
        self.written = np.zeros(place.columns, np.int64)
        """env_steps of each column ever: the next one's generation."""
        self.inserted = np.zeros(place.columns, np.int64)
        """Valid ones among them."""
        self.last_end = np.full(place.columns, -1, np.int64)
        """Generation of the newest env_step of each column that ended an episode; -1: none yet."""
        obs = observation_field(layout, config)
        self.newest_obs = np.zeros((place.columns, *obs.shape), obs.dtype)
        """After the newest env_step of each column."""
        if config.frame_stack > 1:
            frames = rows["frames"], rows["depth"], rows["origin"]
            self.observations: StackedFrames | WholeObservations = StackedFrames(*frames, place.columns)
        else:
            self.observations = WholeObservations(rows["obs"])
        self._layout = layout
        self._index = {env: column for column, env in enumerate(env_columns)}
        self._fields = stored_fields(layout)
        self._prioritized = gives_priorities(layout)

    @property
    def nbytes(self) -> int:
        """Bytes of everything allocated."""
        return (
            sum(array.nbytes for array in self.rows.values())
            + self.newest_obs.nbytes
            + self.observations.nbytes
        )

    def slots(self, columns: Slots, generations: Slots) -> Slots:
        """Where env_steps lie, or will; arrays that fit each other."""
        return columns * self.place.rows + generations % self.place.rows

    @property
    def books(self) -> tuple[int, Array, Array, Array, Array]:
        """What the kernels know of the rings."""
        return self.place.rows, self.flags, self.written, self.last_end, self.inserted

    def generations(self, slots: Slots) -> Slots:
        """Of the env_steps that lie in these slots now."""
        out = np.empty(len(slots), np.int64)
        self._kernels.generations(slots, self.place.rows, self.written, out)
        return out

    def after(self, slots: Slots, steps: Slots | int) -> Slots:
        """Slots so many env_steps later in the same columns."""
        rows = self.place.rows
        return slots // rows * rows + (slots % rows + steps) % rows

    def blocks(self, trajectory: Trajectory) -> Iterator[Block]:
        """What a trajectory brings, to be appended one after the other.

        Its environments are those of its header. Where its first observation is not the last one of that environment
        (env_steps between were lost), the env_step before counts as truncated, and a filling block comes first.
        """
        first, count = int(trajectory.header["first_env"]), int(trajectory.header["num_envs"])
        columns = np.array([self._index[env] for env in range(first, first + count)], np.int64)
        fields = {name: array[:, :count] for name, array in trajectory.fields.items()}
        broken = self._broken(columns, fields["obs"][0])
        if broken.any():
            yield self._filling(columns[broken], fields["obs"][0, broken])
        yield Block(columns, fields, False)

    def append(self, new: Block) -> None:
        """Store one of `blocks` behind the env_steps of its columns."""
        block, columns, fields = self.place.block, new.columns, new.fields
        slots = self.slots(columns, self.written[columns] + self._steps)
        self.observations.write(slots, fields["obs"], columns)
        self.newest_obs[columns] = fields["obs"][-1]
        for field in self._fields:
            if field.start_only:
                self.rows[field.name][slots[0] // block] = fields[field.name][0]
            else:
                self.rows[field.name][slots] = fields[field.name]
        if self._prioritized:
            self.rows[PRIORITY.name][slots] = fields[PRIORITY.name]
        if new.fills_gap:
            self._kernels.fill_gap(columns, block, self.books)
        else:
            ends = fields["terminated"], fields["truncated"], fields["valid"]
            self._kernels.mark(columns, *ends, self.books)

    def _broken(self, columns: Slots, obs: Array) -> npt.NDArray[np.bool_]:
        """Where obs [B, ...] is another one than that after the newest env_step of the column: some were lost. [B]."""
        same = np.empty(len(columns), bool)
        self._kernels.equal_rows(words(self.newest_obs, 1), columns, words(obs, 1), same)
        gap: npt.NDArray[np.bool_] = ~same & (self.written[columns] > 0)
        return gap

    def _filling(self, columns: Slots, obs: Array) -> Block:
        """A block that stands for lost env_steps before `obs` [B, ...]."""
        fields = {
            field.name: np.zeros((field.entries(self.place.block), len(columns), *field.shape), field.dtype)
            for field in self._layout.spec.fields
        }
        fields["obs"][0], fields["obs"][-1] = self.newest_obs[columns], obs
        return Block(columns, fields, True)

    def read_observations(self, slots: Slots, out: Array) -> None:
        """Copy the observations of slots [count] to `out` [count, ...], contiguous."""
        self.observations.read(slots, self.place.rows, out)

    def read_newest(self, slots: Slots, places: Slots, out: Array) -> None:
        """Copy the observations after the newest env_steps of the slots' columns to out[places]."""
        if len(places):
            out[places] = self.newest_obs[slots[places] // self.place.rows]
