"""One protocol for every engine, and the one definition of where an episode ends.

Next-step reset: on the env_step that ends an episode, `obs` is its true last observation. The next
env_step of that environment ignores its action, returns the first observation of the next episode, has
reward 0 and `valid` False.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hpcrl.data.specs import ActionSpec, EnvSpec

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Obs = npt.NDArray[Any]
Actions = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One env_step of B environments. The arrays belong to the environment: see `VectorEnv.recv`."""

    obs: Obs
    """[B, *shape]; at an end the true last observation, never the next episode's first."""
    reward: Floats
    """[B] float32, as the engine pays it: neither clipped nor scaled. 0 where not valid."""
    terminated: Bools
    """[B]: the episode ended in a terminal state; nothing follows it."""
    truncated: Bools
    """[B]: the episode was cut (time limit); `obs` still has a value. Never together with `terminated`."""
    valid: Bools
    """[B]: False on the reset step after an end; no loss, count or average may use that row."""
    episode_return: Doubles
    """[B] float64: undiscounted raw return of the full episode on the env_step at which it ends, else 0."""
    episode_length: Longs
    """[B] int64: valid env_steps of the full episode on the env_step at which it ends, else 0.

    `episode_length > 0` tells where a return is to be logged. It equals `terminated | truncated` except where
    an engine ends training episodes at a lost life: those ends are `terminated`, but the game's return comes
    with its last life."""


@runtime_checkable
class VectorEnv(Protocol):
    """B environments stepped together. Not thread-safe; every call is local."""

    spec: EnvSpec
    num_envs: int

    def reset(self) -> Obs:
        """Start the first episode of every environment; call once, before the first `send`.

        Returns obs [B, *shape], owned by the environment like the arrays of `recv`.
        """

    def send(self, actions: Actions) -> None:
        """Start one env_step with actions [B, *action.shape]; does not wait where the engine allows it.

        The actions are copied: the caller may overwrite them at once. Rows whose episode ended on the last
        env_step are reset instead and their action is ignored. Continuous actions are clipped to their
        bounds.

        Raises:
            RuntimeError: `reset` is missing, or `recv` of the previous env_step is.
            ValueError: the actions have a wrong shape, or a discrete one is out of range.
        """

    def recv(self) -> Step:
        """Wait for the env_step that `send` started.

        Every array of the returned Step, and of `reset`, is valid until the next call of `recv` (not `send`):
        after that the environment may have overwritten it. Copy what must live longer.

        Raises:
            RuntimeError: `send` is missing.
        """

    def close(self) -> None:
        """Free processes, threads and memory. Calling it again does nothing."""


@runtime_checkable
class Resumable(Protocol):
    """A VectorEnv whose state a checkpoint can hold; the others' episodes begin again when a run is resumed."""

    def state(self) -> dict[str, npt.NDArray[Any]] | None:
        """Everything that decides what comes next, random streams included: arrays [B, ...], copied. Between env_steps.

        Row b belongs to environment b alone: after a resume rows may be divided otherwise. None: these environments
        cannot be saved.
        """

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from such rows, as after the `recv` before; instead of `reset`. Raises ValueError."""


class CallOrder:
    """Refuses reset, send and recv out of turn, naming the call that is missing."""

    def __init__(self) -> None:
        self._state = "new"

    @property
    def stepping(self) -> bool:
        """True between send and recv."""
        return self._state == "sent"

    def reset(self) -> None:
        """Allow `reset` once."""
        if self._state != "new":
            raise RuntimeError(f"reset() was called on {self._what()}; reset once, before the first send()")
        self._state = "idle"

    def resume(self) -> None:
        """Allow to go on from a saved state instead of `reset`."""
        if self._state != "new":
            raise RuntimeError(f"load_state() was called on {self._what()}; load instead of reset()")
        self._state = "idle"

    def send(self) -> None:
        """Allow `send` after reset or recv."""
        if self._state != "idle":
            missing = {"new": "reset() is missing", "sent": "recv() of the previous env_step is missing"}
            raise RuntimeError(f"send() out of turn: {missing.get(self._state, 'the environment is closed')}")
        self._state = "sent"

    def recv(self) -> None:
        """Allow `recv` after send."""
        if self._state != "sent":
            missing = {"new": "reset() and send() are missing", "idle": "send() is missing"}
            raise RuntimeError(f"recv() out of turn: {missing.get(self._state, 'the environment is closed')}")
        self._state = "idle"

    def close(self) -> bool:
        """Refuse everything from now on; return True at the first call."""
        first, self._state = self._state != "closed", "closed"
        return first

    def _what(self) -> str:
        return "a closed environment" if self._state == "closed" else "an environment that is already running"


class EpisodeTracker:
    """Turns raw rewards and flags under next-step resets into a Step: valid mask, full returns, lengths."""

    def __init__(self, num_envs: int) -> None:
        self._ended = np.zeros(num_envs, bool)
        self._return = np.zeros(num_envs, np.float64)
        self._length = np.zeros(num_envs, np.int64)
        # Most env_steps end no episode: they share these.
        self._all_valid = _constant(np.ones(num_envs, bool))
        self._no_return = _constant(np.zeros(num_envs, np.float64))
        self._no_length = _constant(np.zeros(num_envs, np.int64))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Rows [B] of what is known of the running episodes, copied."""
        return {
            "ended": self._ended.copy(),
            "episode_return": self._return.copy(),
            "episode_length": self._length.copy(),
        }

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from such rows."""
        self._ended = state["ended"].copy()
        self._return = state["episode_return"].copy()
        self._length = state["episode_length"].copy()

    @property
    def resets_next(self) -> Bools:
        """[B]: rows whose next env_step is the reset step. A view; overwritten by `step`."""
        return self._ended

    def step(
        self,
        obs: Obs,
        reward: npt.NDArray[Any],
        terminated: npt.NDArray[Any],
        truncated: npt.NDArray[Any],
        *,
        game_over: npt.NDArray[Any] | None = None,
    ) -> Step:
        """Account for one env_step; all arguments [B, ...].

        `game_over` [B] marks the ends (of `terminated | truncated`) that also end the full episode; None: all
        do. Where an engine sets both flags the terminal state wins. Rows of a reset step get reward 0 and no
        flags.
        """
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        valid = self._all_valid
        if self._ended.any():
            valid = ~self._ended
            reward = np.where(valid, reward, 0)
            terminated, truncated = terminated & valid, truncated & valid
        self._return += reward
        self._length += valid
        episode_return, episode_length = self._no_return, self._no_length
        self._ended = terminated | truncated
        if self._ended.any():
            truncated = truncated & ~terminated
            over = self._ended if game_over is None else self._ended & np.asarray(game_over, bool)
            episode_return = np.where(over, self._return, 0.0)
            episode_length = np.where(over, self._length, 0)
            self._return[over] = 0.0
            self._length[over] = 0
        return Step(
            obs=obs,
            reward=np.asarray(reward, np.float32),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            episode_return=episode_return,
            episode_length=episode_length,
        )


def _constant(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def prepare_actions(spec: ActionSpec, num_envs: int, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a fresh array [B, *spec.shape] of spec.dtype, checked, and clipped where continuous.

    Raises:
        ValueError: wrong shape, or a choice that is outside 0 .. its number of choices - 1.
    """
    if np.shape(actions) != (num_envs, *spec.shape):
        raise ValueError(f"actions have shape {np.shape(actions)}; use {(num_envs, *spec.shape)}")
    fresh = np.array(actions, spec.dtype)
    if spec.kind == "continuous":
        return np.clip(fresh, np.asarray(spec.low, np.float32), np.asarray(spec.high, np.float32), out=fresh)
    parts = fresh.reshape(num_envs, len(spec.choices_per_part))
    most = np.asarray(spec.choices_per_part)
    if fresh.min() < 0 or (parts >= most).any():
        part = int(np.flatnonzero(((parts < 0) | (parts >= most)).any(axis=0))[0])
        where = f" in part {part}" if len(most) > 1 else ""
        raise ValueError(
            f"actions reach from {parts[:, part].min()} to {parts[:, part].max()}{where}; use 0 to {most[part] - 1}"
        )
    return fresh


def require_choices(spec: EnvSpec, obs: Obs, running: Bools) -> None:
    """Check that the masks of obs [B, ...] allow something in each part, in the rows that are `running` [B].

    A row whose episode has ended need not: its next action is ignored.

    Raises:
        RuntimeError: an observation on which the policy must act allows nothing.
    """
    if not spec.mask_size:
        return
    mask = obs[:, -spec.mask_size :] != 0
    for part, allowed in enumerate(np.split(mask, np.cumsum(spec.action.choices_per_part)[:-1], axis=1)):
        nothing = running & ~allowed.any(axis=1)
        if nothing.any():
            row, where = int(np.flatnonzero(nothing)[0]), f" of part {part}" if spec.action.shape else ""
            raise RuntimeError(
                f"env.id={spec.id!r}: the action mask of row {row} allows no choice{where}, though its episode goes "
                "on; an environment must allow one, or end the episode"
            )
