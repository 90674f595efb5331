"""What travels: the shapes and types of observations, actions and trajectory fields."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

LAYOUT_VERSION = 2
"""Raised when the same fields come to lie at other places of a trajectory (data/trajectory.py)."""


class Part(NamedTuple):
    """One leaf of a Dict or Tuple observation, in the flat array of all."""

    name: str
    """Path of keys, as position/arm."""
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySpec:
    """Shape and dtype of one environment's observation."""

    shape: tuple[int, ...]
    dtype: str
    """numpy name, e.g. float32, uint8"""
    parts: tuple[Part, ...] = ()
    """Leaves behind a flat array, one after the other, each in C order; empty where it is one array."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionSpec:
    """One environment's action, as it is stored.

    discrete: one of `size` choices (int64); multi_discrete: one choice of each of `size` parts (int64);
    continuous: `size` real numbers (float32).
    """

    kind: Literal["discrete", "multi_discrete", "continuous"]
    size: int
    choices: tuple[int, ...] = ()
    """multi_discrete only: number of choices of each part."""
    low: tuple[float, ...] = ()
    """Continuous only, one per dimension; the environment adapter clips to [low, high]."""
    high: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return () if self.kind == "discrete" else (self.size,)

    @property
    def dtype(self) -> str:
        """Type of a stored action."""
        return "float32" if self.kind == "continuous" else "int64"

    @property
    def choices_per_part(self) -> tuple[int, ...]:
        """Number of choices of each part; a discrete action has one part, a continuous one none."""
        return (self.size,) if self.kind == "discrete" else self.choices


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvSpec:
    """What an algorithm must know of an environment."""

    id: str
    observation: ArraySpec
    """As it travels."""
    action: ActionSpec
    max_episode_steps: int | None = None
    masked: ArraySpec | None = None
    """Of an environment that tells which choices are allowed: what the network sees. `observation` is then flat, of the
    same dtype: that, and after it one entry per choice of each part of the action, 0 where it is not allowed."""

    @property
    def features(self) -> ArraySpec:
        """What the network sees: the observation without the action mask."""
        return self.observation if self.masked is None else self.masked

    @property
    def mask_size(self) -> int:
        """Entries at the end of the flat observation that are the action mask; 0: there is none."""
        return 0 if self.masked is None else sum(self.action.choices_per_part)


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One named array of a trajectory."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    """Shape of one env_step's entry; the stored array is [entries(T), B, *shape]."""
    extra_step: bool = False
    """True: T+1 entries in time, the last one after the last action (observations)."""
    start_only: bool = False
    """True: one entry in time, from before the first action (what the policy remembers there)."""
    unit: str = "1"

    def entries(self, unroll_length: int) -> int:
        """Entries in time of a trajectory of T = unroll_length env_steps: T, T+1 or 1."""
        return 1 if self.start_only else unroll_length + int(self.extra_step)


DISCOUNTED_RETURN = Field(name="discounted_return", dtype="float32")
"""Added for algorithm.normalize_returns: rewards of the episode up to and including this env_step, see
hpcrl.data.discounted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrajectorySpec:
    """Fields of a trajectory of T env_steps of B environment slots, time-major."""

    unroll_length: int
    num_envs: int
    fields: tuple[Field, ...]

    @property
    def digest(self) -> int:
        """64-bit fingerprint of the layout; both ends of a stream compare it at start."""
        text = json.dumps(asdict(self) | {"layout": LAYOUT_VERSION}, sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def gradient_spec(fields: tuple[Field, ...]) -> TrajectorySpec:
    """What an actor sends in place of a trajectory, where it computes the gradient itself: one entry for all of it.

    valid (True), parameter_version, env_steps (those of the trajectory that were valid) and slots (all of them), [1, 1]
    each; then `fields`, [1, 1, *shape], which the algorithm adds: the gradient, and sums for the metrics.
    """
    standard = (
        Field(name="valid", dtype="bool"),
        Field(name="parameter_version", dtype="int32", unit="update"),
        Field(name="env_steps", dtype="int64", unit="env_step"),
        Field(name="slots", dtype="int64", unit="env_step"),
    )
    return TrajectorySpec(unroll_length=1, num_envs=1, fields=standard + fields)


def trajectory_spec(
    env: EnvSpec, unroll_length: int, num_envs: int, extra_fields: tuple[Field, ...] = ()
) -> TrajectorySpec:
    """The standard fields, then those an algorithm adds.

    obs [T+1, B], action, reward, terminated, truncated, valid, parameter_version [T, B]; `valid` is False on the
    reset step that follows an episode's end (its action was ignored) and in unused columns: no loss or count may
    use it. `parameter_version` is that of the parameters which chose the action.
    """
    standard = (
        Field(name="obs", dtype=env.observation.dtype, shape=env.observation.shape, extra_step=True),
        Field(name="action", dtype=env.action.dtype, shape=env.action.shape),
        Field(name="reward", dtype="float32"),
        Field(name="terminated", dtype="bool"),
        Field(name="truncated", dtype="bool"),
        Field(name="valid", dtype="bool"),
        Field(name="parameter_version", dtype="int32", unit="update"),
    )
    return TrajectorySpec(unroll_length=unroll_length, num_envs=num_envs, fields=standard + extra_fields)


PRIORITY = Field(name="priority", dtype="float32")
"""Added to what actors send where they give the first priorities: |TD error| of each env_step."""


def transition_spec(env: EnvSpec, count: int) -> TrajectorySpec:
    """What a learner gets of `count` sampled transitions: one entry in time, [1, count] each.

    obs, action; reward: the discounted sum of up to n rewards, as trained on; next_obs: after those; discount: what its
    value counts, gamma^m, 0 after a terminated episode; weight: of importance, before it is divided by the largest of
    the batch; valid (True); parameter_version, that of the action.
    """
    return TrajectorySpec(
        unroll_length=1,
        num_envs=count,
        fields=(
            Field(name="obs", dtype=env.observation.dtype, shape=env.observation.shape),
            Field(name="action", dtype=env.action.dtype, shape=env.action.shape),
            Field(name="reward", dtype="float32"),
            Field(name="next_obs", dtype=env.observation.dtype, shape=env.observation.shape),
            Field(name="discount", dtype="float32"),
            Field(name="weight", dtype="float32"),
            Field(name="valid", dtype="bool"),
            Field(name="parameter_version", dtype="int32", unit="update"),
        ),
    )


def sequence_spec(env: EnvSpec, length: int, count: int, stored: tuple[Field, ...]) -> TrajectorySpec:
    """What a learner gets of `count` sampled sequences: the fields of trajectories of `length` env_steps, and weight.

    reward: as trained on, clipped and scaled already.
    stored: fields that the algorithm adds; of those with `start_only` (initial_state) the one at the first env_step.
    weight: as of `transition_spec`, [1, count].
    """
    weight = Field(name="weight", dtype="float32", start_only=True)
    return trajectory_spec(env, length, count, (*stored, weight))
