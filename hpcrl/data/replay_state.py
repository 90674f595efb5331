"""The state of a replay memory as named arrays, and how it is dealt out anew to another number of shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcrl.data.priorities import PriorityTable
from hpcrl.data.replay_frames import StackedFrames
from hpcrl.data.replay_layout import ReplayLayout, stored_fields
from hpcrl.data.replay_rings import Rings

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]
Part = Mapping[str, Array]
"""The state of one shard."""

_ROWS = "rows/"


class Moved(NamedTuple):
    """A column that was loaded."""

    column: int
    part: Part
    source: int
    """Its column there."""
    shift: int
    """Added to generations, so that trajectories begin at multiples of another unroll_length."""
    old: Slots
    """Where the env_steps lay that have been entries, oldest first."""
    new: Slots
    """Where these lie now."""


def rings_state(rings: Rings, env_columns: Sequence[int]) -> dict[str, Array]:
    """The rings, as views where they are large. Local."""
    place = rings.place
    state: dict[str, Array] = {_ROWS + name: array for name, array in rings.rows.items()}
    state |= {
        "env_columns": np.array(env_columns, np.int64),
        "geometry": np.array([place.rows, place.live, place.block], np.int64),
        "written": rings.written,
        "last_end": rings.last_end,
        "newest_obs": rings.newest_obs,
        "inserted": rings.inserted,
    }
    if isinstance(rings.observations, StackedFrames):
        state |= rings.observations.state()
    return state


def table_state(table: PriorityTable) -> dict[str, Array]:
    """The priorities. Local."""
    return {
        "leaves": table.tree.leaves,
        "priorities": np.array([table.priorities.alpha, table.priorities.largest]),
        "counts": np.array([table.stale, table.priorities.refused], np.int64),
    }


def load_rings(
    rings: Rings, layout: ReplayLayout, env_columns: Sequence[int], parts: Sequence[Part]
) -> Iterator[Moved]:
    """Fill empty rings with the newest env_steps of their environments, as many as fit. Local.

    Raises ValueError naming the keys where they cannot be used.
    """
    for part in parts:
        _check(rings, layout, part)
        envs = part["env_columns"].tolist()
        for column, env in enumerate(env_columns):
            if env in envs:
                yield _load_column(rings, layout, column, part, envs.index(env))


def load_counts(table: PriorityTable, env_columns: Sequence[int], parts: Sequence[Part]) -> None:
    """The largest |TD error| of those that held these environments, and each one's counters in one place. Local."""
    own = [part for part in parts if np.isin(part["env_columns"], env_columns).any()]
    table.priorities.largest = max(float(part["priorities"][1]) for part in own or parts)
    for part in parts:
        if part["env_columns"][0] in env_columns:  # one of the new shards goes on counting
            stale, refused = part["counts"].tolist()
            table.stale += stale
            table.priorities.refused += refused


def saved_powers(table: PriorityTable, part: Part) -> Array:
    """Saved priorities under the alpha of now; exactly these where it is the same. 0: no entry."""
    leaves, before, now = part["leaves"], float(part["priorities"][0]), table.priorities.alpha
    if before == now:
        return leaves
    if before == 0:
        return np.where(leaves > 0, table.priorities.newest, 0)
    return np.where(leaves > 0, leaves ** (now / before), 0)


def _check(rings: Rings, layout: ReplayLayout, part: Part) -> None:
    block = int(part["geometry"][2])
    if block != rings.place.block and layout.sequence_steps:
        raise ValueError(
            f"algorithm.unroll_length={rings.place.block} was {block} when the replay memory was saved, and its "
            "sequences begin where trajectories do; use the old one, or resume without the memory"
        )
    missing = sorted(name for name in rings.rows if _ROWS + name not in part)
    if missing:
        raise ValueError(
            f"the saved replay memory has no {', '.join(missing)}: it was saved with another replay.frame_stack or "
            "algorithm; use the old one, or resume without the memory"
        )


def _load_column(rings: Rings, layout: ReplayLayout, column: int, part: Part, source: int) -> Moved:
    place = rings.place
    old_rows, old_live, old_block = part["geometry"].tolist()
    written = int(part["written"][source])
    shift = -written % place.block
    held = min(old_rows, place.rows, written)
    generations = np.arange(written - held, written)
    old = source * old_rows + generations % old_rows
    new = rings.slots(np.array(column), generations + shift)
    by_trajectory = {field.name for field in stored_fields(layout) if field.start_only}
    for name, array in rings.rows.items():
        if name in by_trajectory:
            array[new[:: place.block] // place.block] = part[_ROWS + name][old[::old_block] // old_block]
        else:
            array[new] = part[_ROWS + name][old]
    rings.written[column] = written + shift
    last_end = int(part["last_end"][source])
    rings.last_end[column] = last_end + shift if last_end >= 0 else -1
    rings.newest_obs[column] = part["newest_obs"][source]
    rings.inserted[column] = part["inserted"][source]
    if isinstance(rings.observations, StackedFrames):
        rings.observations.load_column(part, column, source, new)
    live = min(old_live, place.live)
    return Moved(column, part, source, shift, old[-live:], new[-live:])
