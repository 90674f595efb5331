"""A toy environment that only a policy with a memory can solve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.envs.base import Actions, Bools, Obs
from hpcrl.envs.toy_vector import Outcome


class Recall:
    """One of `size` cues is shown at the first env_step, nothing at the next `delay`, then the question.

    The action there, the number of the cue, pays 1 and any other 0; it ends the episode of delay + 2 env_steps. The
    observation is the cue one-hot, and 1 as its last entry at the question. The best return is 1; of a policy that
    remembers nothing it is 1 / size, as the cue is drawn from the environment's own seed.
    """

    row_state: ClassVar[tuple[str, ...]] = ("_cue", "_step", "_generators")

    def __init__(
        self, indices: Sequence[int], seeds: Sequence[int], *, size: int = 4, delay: int = 8
    ) -> None:
        if size < 2 or delay < 0:
            raise ValueError(f"size={size} and delay={delay}: use at least 2 cues and no negative delay")
        self.spec = EnvSpec(
            id="recall",
            observation=ArraySpec(shape=(size + 1,), dtype="float32"),
            action=ActionSpec(kind="discrete", size=size),
        )
        self._size, self._question = size, delay + 1
        self._generators = [np.random.default_rng(seed) for seed in seeds]
        self._cue: npt.NDArray[np.int64] = np.zeros(len(seeds), np.int64)
        self._step: npt.NDArray[np.int64] = np.zeros(len(seeds), np.int64)

    def restart(self, rows: Bools) -> None:
        """See Dynamics."""
        self._step[rows] = 0
        self._cue[rows] = [self._generators[row].integers(self._size) for row in np.flatnonzero(rows)]

    def advance(self, actions: Actions, rows: Bools) -> Outcome:
        """See Dynamics."""
        asked = rows & (self._step == self._question)
        self._step += rows
        reward = (asked & (actions == self._cue)).astype(np.float64)
        return Outcome(reward, asked, np.zeros_like(rows))

    def observe(self) -> Obs:
        """See Dynamics. After the question there is nothing to see either."""
        obs = np.zeros((len(self._step), self._size + 1), np.float32)
        obs[self._step == 0, :-1] = np.eye(self._size, dtype=np.float32)[self._cue[self._step == 0]]
        obs[:, -1] = self._step == self._question
        return obs
