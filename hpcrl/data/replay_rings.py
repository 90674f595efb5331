"""Rings of env_steps, one for each environment: the storage under a replay memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.config import ReplayConfig
from hpcrl.data.replay_frames import StackedFrames, WholeObservations
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


class Rings:
    """env_steps as they came, reset steps among them. Local.

    A row is known by its slot; what it holds by its generation, the number of that env_step among all of its column.
    Trajectories begin at generations that are multiples of unroll_length, and do not wrap.
    """

    def __init__(self, layout: ReplayLayout, config: ReplayConfig, env_columns: Sequence[int]) -> None:
        self.place = place = geometry(layout, config)
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

    def generations(self, slots: Slots) -> Slots:
        """Of the env_steps that lie in these slots now."""
        rows = self.place.rows
        newest = self.written[slots // rows] - 1
        return newest - (newest - slots % rows) % rows

    def after(self, slots: Slots, steps: Slots | int) -> Slots:
        """Slots so many env_steps later in the same columns."""
        rows = self.place.rows
        return slots // rows * rows + (slots % rows + steps) % rows

    def blocks(self, trajectory: Trajectory) -> Iterator[tuple[Slots, dict[str, Array], Array]]:
        """Columns [B], fields [T, B, ...] and flags [T, B] of a trajectory, each to be appended before the next.

        Its environments are those of its header. Where its first observation is not the last one of that environment
        (env_steps between were lost), the env_step before counts as truncated, and a filling block comes first.
        """
        first, count = int(trajectory.header["first_env"]), int(trajectory.header["num_envs"])
        columns = np.array([self._index[env] for env in range(first, first + count)], np.int64)
        fields = {name: array[:, :count] for name, array in trajectory.fields.items()}
        flags = fields["terminated"] * np.uint8(TERMINATED)
        flags |= fields["truncated"] * np.uint8(TRUNCATED)
        flags |= fields["valid"] * np.uint8(VALID)
        broken = self._broken(columns, fields["obs"][0])
        if broken.any():
            self._end_episode(columns[broken])
            yield columns[broken], *self._filling(columns[broken], fields["obs"][0, broken])
        yield columns, fields, flags

    def append(self, columns: Slots, fields: dict[str, Array], flags: Array) -> None:
        """Store one of `blocks` behind the env_steps of its columns."""
        block = self.place.block
        slots = self.slots(columns, self.written[columns] + np.arange(block)[:, None])
        self.observations.write(slots, fields["obs"], columns)
        self.newest_obs[columns] = fields["obs"][-1]
        self.flags[slots] = flags
        for field in self._fields:
            if field.start_only:
                self.rows[field.name][slots[0] // block] = fields[field.name][0]
            else:
                self.rows[field.name][slots] = fields[field.name]
        if self._prioritized:
            self.rows[PRIORITY.name][slots] = fields[PRIORITY.name]
        ends = (flags & END) != 0
        newest_end = self.written[columns] + block - 1 - ends[::-1].argmax(axis=0)
        self.last_end[columns] = np.where(ends.any(axis=0), newest_end, self.last_end[columns])
        self.written[columns] += block
        self.inserted[columns] += np.count_nonzero(flags & VALID, axis=0)

    def _broken(self, columns: Slots, obs: Array) -> npt.NDArray[np.bool_]:
        """Where obs [B, ...] is another one than that after the newest env_step of the column: some were lost. [B]."""
        count = len(columns)
        before = self.newest_obs[columns].reshape(count, -1)
        now = np.ascontiguousarray(obs).reshape(count, -1)
        same = (before.view(np.uint8) == now.view(np.uint8)).all(axis=1)
        gap: npt.NDArray[np.bool_] = ~same & (self.written[columns] > 0)
        return gap

    def _end_episode(self, columns: Slots) -> None:
        """Let the newest env_step of the columns count as truncated, if it is one of an episode that goes on."""
        newest = self.written[columns] - 1
        slots = self.slots(columns, newest)
        goes_on = self.flags[slots] == VALID
        self.flags[slots[goes_on]] |= TRUNCATED
        self.last_end[columns[goes_on]] = newest[goes_on]

    def _filling(self, columns: Slots, obs: Array) -> tuple[dict[str, Array], Array]:
        """Fields and flags of a block that stands for lost env_steps before `obs` [B, ...], to be appended."""
        block, count = self.place.block, len(columns)
        fields = {
            field.name: np.zeros((field.entries(block), count, *field.shape), field.dtype)
            for field in self._layout.spec.fields
        }
        fields["obs"][0], fields["obs"][-1] = self.newest_obs[columns], obs
        return fields, np.full((block, count), GAP, np.uint8)

    def read_observations(self, slots: Slots, out: Array) -> None:
        """Copy the observations of slots [count] to `out` [count, ...], contiguous."""
        self.observations.read(slots, self.place.rows, out)

    def read_observations_after(self, slots: Slots, steps: Slots | int, out: Array) -> None:
        """As `read_observations`, those `steps` env_steps after the slots; at most one after the newest."""
        rows = self.place.rows
        columns = slots // rows
        generations = self.generations(slots) + steps
        self.read_observations(self.slots(columns, generations), out)
        newest = np.flatnonzero(generations == self.written[columns])
        out[newest] = self.newest_obs[columns[newest]]
