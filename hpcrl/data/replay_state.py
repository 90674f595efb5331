"""The state of a replay memory as named arrays, and how it is dealt out anew to another number of shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcrl.data.generators import generator_rows, load_generator_rows
from hpcrl.data.replay_frames import StackedFrames
from hpcrl.data.replay_layout import stored_fields
from hpcrl.data.replay_rings import VALID

if TYPE_CHECKING:
    from hpcrl.data.replay_memory import ReplayMemory

Array = npt.NDArray[Any]
Part = Mapping[str, Array]

_ROWS = "rows/"


def memory_state(memory: ReplayMemory) -> dict[str, Array]:
    """Everything, as views where it is large. Local."""
    rings, place = memory.rings, memory.rings.place
    state: dict[str, Array] = {_ROWS + name: array for name, array in rings.rows.items()}
    state |= {
        "env_columns": np.array(memory.env_columns, np.int64),
        "geometry": np.array([place.rows, place.live, place.block, memory.layout.sequence_steps], np.int64),
        "written": rings.written,
        "last_end": rings.last_end,
        "newest_obs": rings.newest_obs,
        "inserted": rings.inserted,
        "leaves": memory.tree.leaves,
        "priorities": np.array([memory.table.priorities.alpha, memory.table.priorities.largest]),
        "counts": np.array([memory.table.stale, memory.table.priorities.refused], np.int64),
        "random": generator_rows([memory.rng]),
    }
    if isinstance(rings.observations, StackedFrames):
        state |= rings.observations.state()
    return state


def load_parts(memory: ReplayMemory, parts: Sequence[Part]) -> None:
    """Fill an empty memory from the states of all shards of another attempt. Local. As ReplayMemory.load."""
    where = {
        int(env): (part, column)
        for part in parts
        for column, env in enumerate(np.asarray(part["env_columns"]))
    }
    own = [where[env][0] for env in memory.env_columns if env in where]
    memory.table.priorities.largest = max(float(part["priorities"][1]) for part in own or parts)
    for column, env in enumerate(memory.env_columns):
        if env in where:
            _load_column(memory, column, *where[env])
    rings = memory.rings
    held = rings.written.repeat(rings.place.rows) - rings.generations(np.arange(rings.place.total_rows))
    memory.size = int(np.count_nonzero((held <= rings.place.live) & (rings.flags & VALID != 0)))
    memory.table.rebuild()
    for part in parts:
        envs = part["env_columns"].tolist()
        if envs[0] in memory.env_columns:  # one of the new shards goes on counting
            stale, refused = part["counts"].tolist()
            memory.table.stale += stale
            memory.table.priorities.refused += refused
        if envs == memory.env_columns:
            load_generator_rows([memory.rng], part["random"])


def _load_column(memory: ReplayMemory, column: int, part: Part, source: int) -> None:
    """The newest env_steps of one environment, as many as fit."""
    rings, place = memory.rings, memory.rings.place
    old_rows, old_live, old_block, old_length = part["geometry"].tolist()
    if old_block != place.block and (old_length or memory.layout.sequence_steps):
        raise ValueError(
            f"algorithm.unroll_length={place.block} was {old_block} when the replay memory was saved, and its "
            "sequences begin where trajectories do; use the old one, or resume without the memory"
        )
    missing = sorted(name for name in rings.rows if _ROWS + name not in part)
    if missing:
        raise ValueError(
            f"the saved replay memory has no {', '.join(missing)}: it was saved with another replay.frame_stack or "
            "algorithm; use the old one, or resume without the memory"
        )
    written = int(part["written"][source])
    shift = -written % place.block  # a multiple again, where unroll_length has changed
    held = min(old_rows, place.rows, written)
    generations = np.arange(written - held, written)
    old = source * old_rows + generations % old_rows
    new = rings.slots(np.array(column), generations + shift)
    for name, array in rings.rows.items():
        if name in {field.name for field in stored_fields(memory.layout) if field.start_only}:
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
    new, leaves = new[-live:], _powers(memory, part, part["leaves"][old[-live:]])
    memory.tree.leaves[new] = memory.beginnings.enter_loaded(column, new, leaves)


def _powers(memory: ReplayMemory, part: Part, leaves: Array) -> Array:
    """Saved priorities under the alpha of now; exactly these where it is the same. 0: no entry."""
    before, now = float(part["priorities"][0]), memory.table.priorities.alpha
    if before == now:
        return leaves
    if before == 0:
        return np.where(leaves > 0, memory.table.priorities.newest, 0)
    return np.where(leaves > 0, leaves ** (now / before), 0)
