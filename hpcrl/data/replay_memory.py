"""One shard of the replay memory: what actors sent, and samples of it. Local: no MPI, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.config import ReplayConfig
from hpcrl.data.specs import TrajectorySpec
from hpcrl.data.trajectory import Trajectory

State = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was drawn: entries of the memory, transitions or sequences."""

    slots: npt.NDArray[np.int64]
    """[count], in rising order"""
    generations: npt.NDArray[np.int64]
    """[count]: what a slot held when it was drawn; another number is there once it was replaced."""
    weights: npt.NDArray[np.float32]
    """[count]: (share * P)^-beta with P the probability within this shard; not divided by the largest."""


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


def predicted_bytes(layout: ReplayLayout, config: ReplayConfig) -> int:
    """Bytes that a ReplayMemory of this layout will take, in RAM or in files. Pure."""
    raise NotImplementedError


class ReplayMemory:
    """A ring of env_steps for each environment, with n-step transitions or sequences drawn from it.

    Each observation is stored once, and of a stack of frames (config.frame_stack) only the newest frame.
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

    size: int
    """Valid env_steps held now."""
    entries: int
    """Transitions or sequences that can be drawn now; `sample` needs at least one."""
    inserted: int
    """Valid env_steps ever inserted, those of earlier attempts too."""
    nbytes: int
    """Bytes of everything allocated."""
    stale_updates: int
    """Priorities that came for entries replaced meanwhile, and were left out."""
    refused_priorities: int
    """Priorities that were negative or not finite, and were left out."""

    def insert(self, trajectory: Trajectory) -> None:
        """Copy the used columns of a trajectory into the rings; what is oldest there makes room.

        Its environments are those of its header. Where its first observation is not the last one of that environment
        (env_steps between were lost), the env_step before counts as truncated.
        """

    def sample(self, count: int, beta: float = 0.0, share: float = 1.0) -> Sample:
        """Draw `count` entries with replacement, one from each of `count` equal parts of the priorities' sum.

        share: the part of the whole batch that this shard fills; its entries are `share` as likely as by P alone.
        Raises RuntimeError where there is no entry.
        """
        raise NotImplementedError

    def gather(self, sample: Sample, out: Trajectory, columns: slice) -> None:
        """Write what was drawn to the `columns` of `out` (of transition_spec or sequence_spec).

        Before the next `insert`: raises RuntimeError for an entry that is not there any more.
        """

    def update_priorities(self, sample: Sample, td: npt.NDArray[np.float32]) -> None:
        """New priorities |TD error| [count] of what was drawn before; the last one counts for an entry drawn twice."""

    def state(self) -> State:
        """Everything, for a checkpoint: views of the memory itself, to be written before the next call."""
        raise NotImplementedError

    def load(self, parts: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
        """Take this shard's environments out of what the shards of another attempt had, however many those were.

        The random stream goes on where one of them had the same environments; else it stays as given.
        """

    def close(self) -> None:
        """Free the memory and the files it lies in."""
