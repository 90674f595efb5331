"""The contract between an algorithm and the roles that run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from hpcrl.config import AlgorithmConfig, ModelConfig
from hpcrl.data.specs import EnvSpec, Field
from hpcrl.models.flat import FlatParameters


class Reducer(Protocol):
    """Sums over all learners; given to an algorithm, which cannot communicate otherwise."""

    def sum_(self, vector: Tensor) -> None:
        """Replace a contiguous 1-D CPU float32 or float64 vector by its sum over all learners, in place.

        Collective over the learners: each must call it equally often, in the same order, with equal sizes.
        The result is bit-equal on all of them.
        """


class LocalReducer:
    """The reducer of a single learner."""

    def sum_(self, vector: Tensor) -> None:
        """Local. The sum over one learner is the vector itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One learner's share of an update's batch."""

    fields: Mapping[str, Tensor]
    """name -> [T, C, ...] (obs: [T+1, C, ...]); C columns, one per slot of each trajectory; C may be 0."""
    column_offset: int
    """Index of the first column among the columns of all learners."""
    total_columns: int
    """Columns of all learners together."""
    update: int
    """Number of this update (0 for the first): together with the seed it fixes the minibatch partition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateResult:
    """What an update did. Equal on all learners."""

    metrics: dict[str, float]
    """Global means over valid env_steps, by the names of storage.schema's table `updates`."""
    applied: bool
    """False when a gradient was not finite: parameters and optimizer were left as they were."""


class Algorithm(ABC):
    """Acting and learning for one network. No MPI, no files, no environments."""

    Config: ClassVar[type[AlgorithmConfig]]
    extra_fields: ClassVar[tuple[Field, ...]] = ()
    """Fields the actor stores besides the standard ones; `act` returns one array for each."""
    parameters: FlatParameters
    """All parameters as one vector; what is published and checkpointed."""

    @abstractmethod
    def __init__(self, config: Any, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        """Build network and optimizer; equal seeds give equal parameters."""

    @abstractmethod
    def act(
        self, obs: npt.NDArray[Any], rng: np.random.Generator, *, greedy: bool = False
    ) -> dict[str, npt.NDArray[Any]]:
        """Choose actions for obs [B, ...]. Local; no gradient.

        Returns `action` [B, *action.shape] and one array [B, ...] for each of `extra_fields`.
        """

    @abstractmethod
    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """One update: every epoch and minibatch of one batch.

        Collective over the learners, through `reducer`. `progress` in [0, 1] is the share of the budget used.
        """

    @abstractmethod
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything learned: parameters, optimizer moments and counters, as named arrays (copies)."""

    @abstractmethod
    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what `state` returned. Raises ValueError naming a missing or misshaped entry."""
