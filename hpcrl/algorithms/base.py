"""The contract between an algorithm and the roles that run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.config import AlgorithmConfig, ModelConfig
from hpcrl.config.hops import Timed
from hpcrl.data.specs import EnvSpec, Field
from hpcrl.functional.square_sum import square_sum
from hpcrl.models.flat import FlatParameters

Vector = npt.NDArray[np.float32]
State = npt.NDArray[np.float32]
"""What an algorithm remembers of B environments, [B, size]: one row for each."""


class Reducer(Protocol):
    """Sums over all learners; given to an algorithm, which cannot communicate otherwise."""

    def sum_(self, vector: Tensor) -> None:
        """Replace a contiguous 1-D float32 or float64 vector by its sum over all learners, in place.

        Collective over the learners: each must call it equally often, in the same order, with equal sizes.
        The result is bit-equal on all of them.
        """

    def open_gradient(self, size: int, exact: Sequence[range] = ()) -> Vector | Tensor:
        """Memory for this learner's gradient, float32 [size]; the same on each call with the same size.

        Collective over the learners. A Tensor where torch.distributed sums, on this learner's device; torch.as_tensor
        makes one of either, in the same memory. `exact`: ranges that are not to be compressed. The memory may be
        written from the end of `finish` to the `start` of a bucket.
        """

    @property
    def buckets(self) -> tuple[range, ...]:
        """Parts of the gradient, in the order in which a backward pass ends them."""

    def start(self, bucket: int) -> None:
        """This learner's part of a bucket is complete: its sum may begin. Never waits; at most once per gradient."""

    def poll(self) -> None:
        """Progress with what was started. Never waits."""

    def finish(self, extras: Sequence[float] = ()) -> Vector | Tensor:
        """Sum the gradients of all learners; float32 [size], where the gradient lies, read-only.

        Valid until the next `start` or `finish`. Collective over the learners. `extras`: a few numbers, whose sums are
        `extra_sums` afterwards.
        """

    @property
    def extra_sums(self) -> npt.NDArray[np.float64]:
        """Of the last `finish`."""

    def square_sum(self) -> float:
        """Sum of the squares of the last result, in float64; equal on all learners."""


class LocalReducer:
    """The reducer of a single learner: a sum is what is there."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.float32)
        self.extra_sums: npt.NDArray[np.float64] = np.zeros(0)

    def sum_(self, vector: Tensor) -> None:
        """Local."""

    def open_gradient(self, size: int, exact: Sequence[range] = ()) -> Vector:
        """Local."""
        if self._memory.size != size:
            self._memory = np.zeros(size, np.float32)
        return self._memory

    @property
    def buckets(self) -> tuple[range, ...]:
        """Everything at once."""
        return (range(self._memory.size),)

    def start(self, bucket: int) -> None:
        """Nothing happens before `finish`."""

    def poll(self) -> None:
        """Nothing to progress."""

    def finish(self, extras: Sequence[float] = ()) -> Vector:
        """Local."""
        self.extra_sums = np.array(extras, np.float64)
        return self._memory

    def square_sum(self) -> float:
        """Local."""
        return square_sum(self._memory)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One learner's share of an update's batch."""

    fields: Mapping[str, Tensor]
    """name -> [T, C, ...] (obs: [T+1, C, ...], initial_state: [1, C, size]); C columns, one per slot of each
    trajectory; C may be 0."""
    column_offset: int
    """Index of the first column among the columns of all learners."""
    total_columns: int
    """Columns of all learners together."""
    update: int
    """Number of this update (0 for the first): together with the seed it fixes the minibatch partition."""
    check_finite: bool = True
    """False (faults.without=finite-check): step along a gradient that is not finite, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateResult:
    """What an update did. Equal on all learners."""

    metrics: dict[str, float]
    """Global means over valid env_steps, by the names of storage.schema's table `updates`."""
    applied: bool
    """False when a gradient was not finite: parameters and optimizer were left as they were."""
    priorities: Vector | None = None
    """Of this learner's columns [C], not equal on all: |TD error|, for a prioritized replay memory; None: unchanged."""


class Algorithm(ABC):
    """Acting and learning for one network. No MPI, no files, no environments."""

    Config: ClassVar[type[AlgorithmConfig]]
    extra_fields: ClassVar[tuple[Field, ...]] = ()
    """Fields the actor stores besides the standard ones; `act` returns one array for each."""
    timed: Timed = nullcontext
    """Around what is a hop of its own (`config/hops.py`): set by who takes the times."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Kinds of device that `move` accepts and `update` can run on."""
    parameters: FlatParameters
    """All parameters as one vector; what is published and checkpointed."""

    @abstractmethod
    def __init__(self, config: Any, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        """Build network and optimizer; equal seeds give equal parameters."""

    def initial_state(self, num_envs: int) -> State | None:
        """What `act` remembers of `num_envs` environments where an episode begins, float32 [num_envs, size]. Local.

        None: it chooses by the observation alone. Else the state before the first env_step of each trajectory comes
        with a batch as its field `initial_state`; within, the reset step (where not `valid`) begins an episode.
        """
        return None

    @property
    def stored_fields(self) -> tuple[Field, ...]:
        """All fields of a trajectory besides the standard ones."""
        state = self.initial_state(1)
        if state is None:
            return self.extra_fields
        field = Field(name="initial_state", dtype="float32", shape=state.shape[1:], start_only=True)
        return (*self.extra_fields, field)

    @abstractmethod
    def act(
        self,
        obs: npt.NDArray[Any],
        rng: np.random.Generator,
        *,
        state: State | None = None,
        greedy: bool = False,
        exploration: Vector | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Choose actions for obs [B, ...]. Local; no gradient.

        `state` is given where `initial_state` gives one, and `exploration` where that does: others may leave the
        arguments out.

        Returns `action` [B, *action.shape], which is stored, one array [B, ...] for each of `extra_fields`, and, where
        `state` was given, `state` after this env_step in memory of its own.
        """

    def exploration(self, envs: npt.NDArray[np.int64], num_envs: int, env_steps: int) -> Vector | None:
        """How `act` explores in the environments `envs` [B], indices among the run's `num_envs`; float32 [B]. Local.

        `env_steps`: of the whole run, as far as an actor knows when a trajectory begins. None: `act` needs none.
        """
        return None

    def first_priorities(self, fields: Mapping[str, npt.NDArray[Any]]) -> Vector:
        """|TD error| of each env_step of a trajectory [T, B, ...] that was just collected; float32 [T, B]. Local.

        Asked for where the configuration `gives_priorities`. Steps near the end look fewer steps ahead.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no priorities")

    def to_env(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What the environment gets for stored actions [B, *action.shape]: here the actions themselves. Local."""
        return action

    @abstractmethod
    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """One update: every epoch and minibatch of one batch.

        Collective over the learners, through `reducer`. `progress` in [0, 1] is the share of the budget used.
        """

    @property
    def gradient_fields(self) -> tuple[Field, ...]:
        """What `gradient` returns, where actors send that (`AlgorithmConfig.sends_gradients`)."""
        raise NotImplementedError(f"{type(self).__name__} computes no gradients on actors")

    def gradient(self, fields: Mapping[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
        """The gradient of one trajectory [T, B], as the arrays [*shape] that `update` gets [1, C, *shape] of. Local."""
        raise NotImplementedError(f"{type(self).__name__} computes no gradients on actors")

    def observe(self, batch: Batch, reducer: Reducer) -> None:  # noqa: B027
        """Count the batch into running moments, if there are any: what the next updates normalize by.

        Collective over the learners. The role calls it after the `update` with this batch, if that was applied, and
        never twice with the same trajectory: one that is trained on again has been counted already.
        """

    def move(self, device: torch.device) -> None:
        """Keep everything learned on `device` and compute there from here on; batches are there, obs of `act` are not.

        Raises NotImplementedError for a device of another kind than `devices`.
        """
        if device.type != "cpu":
            raise NotImplementedError(f"{type(self).__name__} does not run on {device}")

    def vectors(self) -> list[Tensor]:
        """What the optimizer changes, float32, the memory itself; the first is that of `parameters`.

        None where it cannot be shared.
        """
        return []

    def share(self, memories: Sequence[Tensor], own: range, stepped: Callable[[], None]) -> None:
        """Let `vectors` lie in `memories`, which hold their values, and step only the parameters `own` from here on.

        Other learners step the others in the same memory; `stepped()` waits until all have.
        """
        raise NotImplementedError(f"{type(self).__name__} has no optimizer to share")

    def release(self) -> None:  # noqa: B027
        """Copy what lies in memory of the reducer into memory of its own, before that is given back."""

    @abstractmethod
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything learned: parameters, moments and counters, as named arrays (copies)."""

    @abstractmethod
    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what `state` returned. Raises ValueError naming a missing or misshaped entry."""
