"""What a shard of the replay memory holds: shapes, places and bytes of its arrays, known before it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from hpcrl.config import ReplayConfig
from hpcrl.data.specs import PRIORITY, Field, TrajectorySpec
from hpcrl.data.sum_tree import tree_bytes

_FROM_TRAJECTORY = ("obs", "terminated", "truncated", "valid", PRIORITY.name)
"""Standard fields that are stored in another form, or under conditions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayLayout:
    """What a shard holds and what its samples are; enough to know its size before it is made."""

    spec: TrajectorySpec
    """Of what actors send."""
    num_columns: int
    """Environments whose env_steps lie here."""
    capacity: int
    """env_steps of this shard, those of reset steps counted too."""
    steps_ahead: int = 1
    """n of the n-step return."""
    sequence_steps: int = 0
    """L: length of the sequences, a multiple of the spec's unroll_length; 0: transitions."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Rows of the rings, one after the other: environment column c has rows c * rows to (c + 1) * rows - 1."""

    columns: int
    live: int
    """env_steps of a column that can be sampled: the newest."""
    rows: int
    """Of a column, a multiple of unroll_length, so that a trajectory never wraps: live ones and, where there are
    stacks, the frames that these need of the env_steps before them."""
    block: int
    """unroll_length"""

    @property
    def total_rows(self) -> int:
        """Of all columns."""
        return self.columns * self.rows


Arrays = dict[str, tuple[tuple[int, ...], str]]
"""name -> shape, dtype"""


def geometry(layout: ReplayLayout, config: ReplayConfig) -> Geometry:
    """How the rings lie. Pure. Raises ValueError naming the keys where a column would be too short."""
    block, columns = layout.spec.unroll_length, layout.num_columns
    live = layout.capacity // columns
    need = least_column_steps(block, layout.steps_ahead, layout.sequence_steps)
    if live < need:
        raise ValueError(
            f"replay.capacity leaves {live} env_steps to each of the {columns} environments of a replay rank, where "
            f"{need} are needed for a sample; use at least {need} x env.num_envs"
        )
    if layout.sequence_steps % block:
        raise ValueError(
            f"sequences of {layout.sequence_steps} env_steps are no multiple of algorithm.unroll_length={block}; "
            "change that"
        )
    rows = live + max(config.frame_stack - 1, 0)
    return Geometry(columns, live, -(-rows // block) * block, block)


def least_column_steps(unroll_length: int, steps_ahead: int, sequence_steps: int) -> int:
    """env_steps of one environment with which there is always something to sample, also while more come. Pure."""
    return unroll_length + max(steps_ahead, sequence_steps)


def stored_fields(layout: ReplayLayout) -> list[Field]:
    """Fields that are kept as they come, by env_step or (start_only) by trajectory; transitions need few of them."""
    fields = [field for field in layout.spec.fields if field.name not in _FROM_TRAJECTORY]
    if not layout.sequence_steps:
        fields = [field for field in fields if field.name in ("action", "reward", "parameter_version")]
    return fields


def gives_priorities(layout: ReplayLayout) -> bool:
    """Whether the actors send first priorities."""
    return any(field.name == PRIORITY.name for field in layout.spec.fields)


def observation_field(layout: ReplayLayout, config: ReplayConfig) -> Field:
    """The field obs. Raises ValueError where it does not consist of replay.frame_stack frames."""
    obs = next(field for field in layout.spec.fields if field.name == "obs")
    if config.frame_stack and obs.shape[:1] != (config.frame_stack,):
        raise ValueError(
            f"replay.frame_stack={config.frame_stack}, but observations have the shape {list(obs.shape)}: use the "
            "length of their first axis, or 0 where they are no stacks of frames"
        )
    return obs


def row_arrays(layout: ReplayLayout, config: ReplayConfig) -> Arrays:
    """The arrays with an entry for every env_step or trajectory. Pure."""
    place, obs = geometry(layout, config), observation_field(layout, config)
    rows = place.total_rows
    arrays: Arrays = {"flags": ((rows,), "uint8")}
    if config.frame_stack > 1:
        arrays["frames"] = ((rows + 1, *obs.shape[1:]), obs.dtype)  # and one of zeros
        arrays["depth"], arrays["origin"] = ((rows,), "uint8"), ((rows,), "int32")
    else:
        arrays["obs"] = ((rows, *obs.shape), obs.dtype)
    for field in stored_fields(layout):
        count = rows // place.block if field.start_only else rows
        arrays[field.name] = ((count, *field.shape), field.dtype)
    if gives_priorities(layout):
        arrays[PRIORITY.name] = ((rows,), "float32")
    return arrays


def waiting_layout(layout: ReplayLayout) -> ReplayLayout:
    """Of the rings in which env_steps wait until their transitions are complete (eviction=lowest_priority). Pure."""
    steps = least_column_steps(layout.spec.unroll_length, layout.steps_ahead, 0)
    return replace(layout, capacity=layout.num_columns * steps)


def whole_transitions(layout: ReplayLayout, config: ReplayConfig) -> Arrays:
    """The arrays of transitions that are kept whole (eviction=lowest_priority). Pure.

    Raises ValueError naming the keys for what they cannot be, and where the capacity is too small.
    """
    if layout.sequence_steps or config.frame_stack:
        what = "sequences" if layout.sequence_steps else f"replay.frame_stack={config.frame_stack}"
        raise ValueError(
            f"replay.eviction=lowest_priority is not there with {what}: what stays is no longer consecutive; use "
            "replay.eviction=fifo"
        )
    geometry(layout, config)  # as many as may become complete at once have room
    count, obs = layout.capacity, observation_field(layout, config)
    arrays: Arrays = dict.fromkeys(("obs", "next_obs"), ((count, *obs.shape), obs.dtype))
    for field in stored_fields(layout):
        arrays[field.name] = ((count, *field.shape), field.dtype)
    arrays["discount"], arrays["valid"] = ((count,), "float32"), ((count,), "bool")
    arrays["env"], arrays["generation"] = ((count,), "int32"), ((count,), "int64")
    return arrays


def array_bytes(arrays: Arrays) -> int:
    """Bytes of all of them."""
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in arrays.values())


def predicted_bytes(layout: ReplayLayout, config: ReplayConfig) -> int:
    """Bytes that a ReplayMemory of this layout will take, in RAM or (memory_map) most of them in files. Pure.

    Not in it: first stacks of episodes that are neither copies of a frame nor filled up with zeros.
    """
    if config.eviction == "lowest_priority":
        kept = array_bytes(whole_transitions(layout, config)) + tree_bytes(layout.capacity)
        return kept + _rings_bytes(waiting_layout(layout), config)
    return _rings_bytes(layout, config) + tree_bytes(geometry(layout, config).total_rows)


def _rings_bytes(layout: ReplayLayout, config: ReplayConfig) -> int:
    place, obs = geometry(layout, config), observation_field(layout, config)
    newest = place.columns * math.prod(obs.shape) * np.dtype(obs.dtype).itemsize
    return array_bytes(row_arrays(layout, config)) + newest
