"""Small environments with known values, for tests, examples and first runs. numpy only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.envs.base import Actions, Bools, Doubles, Obs
from hpcrl.envs.toy_vector import Outcome

TWO_CHOICES = ActionSpec(kind="discrete", size=2)


class Counting:
    """Observation and reward are the number of the env_step within the episode; finds most border faults.

    The episodes of environment i end in turn by termination at 5 (where i plus the number of its finished
    episodes is even) and by truncation at 7. With `tagged` the observation is [step, tag], where the tag in
    [0, 1) is drawn from the environment's own seed at every reset. Actions do nothing.
    """

    row_state: ClassVar[tuple[str, ...]] = ("_obs", "_parity", "_generators")

    def __init__(self, indices: Sequence[int], seeds: Sequence[int], *, tagged: bool = False) -> None:
        self.spec = EnvSpec(
            id="counting",
            observation=ArraySpec(shape=(2,) if tagged else (1,), dtype="float32"),
            action=TWO_CHOICES,
            max_episode_steps=7,
        )
        self._generators = [np.random.default_rng(seed) for seed in seeds]
        self._obs = np.zeros((len(seeds), 2 if tagged else 1), np.float32)
        self._parity: npt.NDArray[np.int64] = np.asarray(indices, np.int64) % 2

    def restart(self, rows: Bools) -> None:
        """See Dynamics."""
        self._obs[rows, 0] = 0
        if self._obs.shape[1] == 2:
            self._obs[rows, 1] = [self._generators[row].random() for row in np.flatnonzero(rows)]

    def advance(self, actions: Actions, rows: Bools) -> Outcome:
        """See Dynamics."""
        self._obs[rows, 0] += 1
        step = self._obs[:, 0].astype(np.float64)
        terminated = rows & (self._parity == 0) & (step == 5)
        truncated = rows & (self._parity == 1) & (step == 7)
        self._parity = np.where(terminated | truncated, 1 - self._parity, self._parity)
        return Outcome(step, terminated, truncated)

    def observe(self) -> Obs:
        """See Dynamics."""
        return self._obs.copy()


class Bandit:
    """One env_step per episode. Arm a pays means[a] plus normal noise; the last mean is best by default."""

    row_state: ClassVar[tuple[str, ...]] = ("_generators",)

    def __init__(
        self,
        indices: Sequence[int],
        seeds: Sequence[int],
        *,
        means: Sequence[float] = (0.0, 1.0),
        noise_std: float = 0.0,
    ) -> None:
        self.spec = EnvSpec(
            id="bandit",
            observation=ArraySpec(shape=(1,), dtype="float32"),
            action=ActionSpec(kind="discrete", size=len(means)),
        )
        self._means = np.asarray(means, np.float64)
        self._noise_std = noise_std
        self._generators = [np.random.default_rng(seed) for seed in seeds]

    def restart(self, rows: Bools) -> None:
        """See Dynamics. There is no state."""

    def advance(self, actions: Actions, rows: Bools) -> Outcome:
        """See Dynamics."""
        reward = self._means[actions]
        if self._noise_std:
            drawn = np.flatnonzero(rows)
            reward[drawn] += [self._noise_std * self._generators[row].normal() for row in drawn]
        return Outcome(reward, rows.copy(), np.zeros_like(rows))

    def observe(self) -> Obs:
        """See Dynamics."""
        return np.ones((len(self._generators), 1), np.float32)


class Chain:
    """States 0 .. size-1 in a row, observed one-hot. Action 1 goes right, 0 goes left (and stays at 0).

    Reaching the last state pays 1 and terminates; everything else pays 0. `chain_values` gives the values. With
    `seconds_per_step` all rows together sleep that long in each env_step, as if a solver elsewhere computed them.
    """

    row_state: ClassVar[tuple[str, ...]] = ("_state", "_elapsed")

    def __init__(
        self,
        indices: Sequence[int],
        seeds: Sequence[int],
        *,
        size: int = 5,
        max_episode_steps: int = 100,
        seconds_per_step: float = 0.0,
    ) -> None:
        if size < 2:
            raise ValueError(f"size={size}: a chain needs at least 2 states")
        self.spec = EnvSpec(
            id="chain",
            observation=ArraySpec(shape=(size,), dtype="float32"),
            action=TWO_CHOICES,
            max_episode_steps=max_episode_steps,
        )
        self._size = size
        self._limit = max_episode_steps
        self._seconds_per_step = seconds_per_step
        self._state = np.zeros(len(seeds), np.int64)
        self._elapsed = np.zeros(len(seeds), np.int64)

    def restart(self, rows: Bools) -> None:
        """See Dynamics."""
        self._state[rows] = 0
        self._elapsed[rows] = 0

    def advance(self, actions: Actions, rows: Bools) -> Outcome:
        """See Dynamics."""
        if self._seconds_per_step:
            time.sleep(self._seconds_per_step)
        moved = np.maximum(self._state + np.where(actions == 1, 1, -1), 0)
        self._state = np.where(rows, moved, self._state)
        self._elapsed += rows
        goal = rows & (self._state == self._size - 1)
        return Outcome(goal.astype(np.float64), goal, rows & ~goal & (self._elapsed >= self._limit))

    def observe(self) -> Obs:
        """See Dynamics."""
        return np.eye(self._size, dtype=np.float32)[self._state]


class TimeLimitChain:
    """Reward 1 for ever in one state, cut every `limit` env_steps: its value is 1 / (1 - gamma).

    Code that takes the cut for an end finds a value of at most `limit`.
    """

    row_state: ClassVar[tuple[str, ...]] = ("_elapsed",)

    def __init__(self, indices: Sequence[int], seeds: Sequence[int], *, limit: int = 5) -> None:
        self.spec = EnvSpec(
            id="time-limit-chain",
            observation=ArraySpec(shape=(1,), dtype="float32"),
            action=TWO_CHOICES,
            max_episode_steps=limit,
        )
        self._limit = limit
        self._elapsed = np.zeros(len(seeds), np.int64)

    def restart(self, rows: Bools) -> None:
        """See Dynamics."""
        self._elapsed[rows] = 0

    def advance(self, actions: Actions, rows: Bools) -> Outcome:
        """See Dynamics."""
        self._elapsed += rows
        return Outcome(np.ones(len(rows)), np.zeros_like(rows), rows & (self._elapsed >= self._limit))

    def observe(self) -> Obs:
        """See Dynamics."""
        return np.ones((len(self._elapsed), 1), np.float32)


class Lives:
    """A game of `lives` lives of `steps_per_life` env_steps that pay `reward` each.

    The observation is [lives left, env_step within the life]. With `episodic_life` every lost life is a
    termination after which the game goes on, as Atari trainers like it; the game's return is
    lives * steps_per_life * reward either way.
    """

    row_state: ClassVar[tuple[str, ...]] = ("_lives", "_step")

    def __init__(
        self,
        indices: Sequence[int],
        seeds: Sequence[int],
        *,
        lives: int = 3,
        steps_per_life: int = 4,
        reward: float = 5.0,
        episodic_life: bool = False,
    ) -> None:
        self.spec = EnvSpec(
            id="lives", observation=ArraySpec(shape=(2,), dtype="float32"), action=TWO_CHOICES
        )
        self._all_lives, self._steps_per_life = lives, steps_per_life
        self._reward, self._episodic_life = reward, episodic_life
        self._lives = np.zeros(len(seeds), np.int64)
        self._step = np.zeros(len(seeds), np.int64)

    def restart(self, rows: Bools) -> None:
        """See Dynamics. A game with lives left goes on."""
        self._lives[rows & (self._lives == 0)] = self._all_lives
        self._step[rows] = 0

    def advance(self, actions: Actions, rows: Bools) -> Outcome:
        """See Dynamics."""
        self._step += rows
        lost = rows & (self._step == self._steps_per_life)
        self._lives -= lost
        over = lost & (self._lives == 0)
        if not self._episodic_life:
            self._step[lost & ~over] = 0
        ended = lost if self._episodic_life else over
        return Outcome(np.full(len(rows), self._reward), ended, np.zeros_like(rows), over)

    def observe(self) -> Obs:
        """See Dynamics."""
        return np.stack([self._lives, self._step], axis=1).astype(np.float32)


def chain_values(size: int, gamma: float, right_probability: float = 1.0) -> Doubles:
    """Exact values [size] of `Chain` for a policy that goes right with a fixed probability (1: optimal)."""
    transition = np.zeros((size, size))
    reward = np.zeros(size)
    for state in range(size - 1):
        transition[state, state + 1] += right_probability
        transition[state, max(state - 1, 0)] += 1 - right_probability
    reward[size - 2] = right_probability
    transition[:, size - 1] = 0  # nothing follows the goal
    return np.asarray(np.linalg.solve(np.eye(size) - gamma * transition, reward), np.float64)
