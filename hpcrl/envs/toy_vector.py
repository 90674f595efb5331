"""Toy environments behind the protocol: rows of one Markov decision process."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hpcrl.data.generators import generator_rows, load_generator_rows
from hpcrl.data.specs import EnvSpec
from hpcrl.envs.base import Actions, Bools, CallOrder, Doubles, EpisodeTracker, Obs, Step, prepare_actions


class Outcome(NamedTuple):
    """What one env_step of B toy environments gives."""

    reward: Doubles
    terminated: Bools
    truncated: Bools
    game_over: Bools | None = None


class Dynamics(Protocol):
    """B copies of one Markov decision process, stepped by row."""

    spec: EnvSpec
    row_state: ClassVar[tuple[str, ...]]
    """Attributes with one entry per row, arrays or lists of generators: everything that decides what comes next."""

    def restart(self, rows: Bools) -> None:
        """Begin a new episode in the rows that are True."""

    def advance(self, actions: Actions, rows: Bools) -> Outcome:
        """Step the rows that are True and leave the others; their outcome is ignored."""

    def observe(self) -> Obs:
        """Return the observations [B, *shape] of the present states as a fresh array."""


class ToyVectorEnv:
    """Any Dynamics behind the protocol."""

    def __init__(self, dynamics: Dynamics, num_envs: int) -> None:
        self.spec: EnvSpec = dynamics.spec
        self.num_envs = num_envs
        self._dynamics = dynamics
        self._order = CallOrder()
        self._tracker = EpisodeTracker(num_envs)
        self._actions: npt.NDArray[Any] = np.zeros(
            (num_envs, *self.spec.action.shape), self.spec.action.dtype
        )

    def reset(self) -> Obs:
        """See VectorEnv."""
        self._order.reset()
        self._dynamics.restart(np.ones(self.num_envs, bool))
        return self._dynamics.observe()

    def send(self, actions: Actions) -> None:
        """See VectorEnv."""
        fresh = prepare_actions(self.spec.action, self.num_envs, actions)
        self._order.send()
        self._actions = fresh

    def recv(self) -> Step:
        """See VectorEnv."""
        self._order.recv()
        restarted = self._tracker.resets_next.copy()
        outcome = self._dynamics.advance(self._actions, ~restarted)
        self._dynamics.restart(restarted)
        return self._tracker.step(
            self._dynamics.observe(),
            outcome.reward,
            outcome.terminated,
            outcome.truncated,
            game_over=outcome.game_over,
        )

    def close(self) -> None:
        """See VectorEnv."""
        self._order.close()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """See Resumable."""
        state = {f"episode/{name}": array for name, array in self._tracker.state().items()}
        for name in self._dynamics.row_state:
            value = getattr(self._dynamics, name)
            state[name] = generator_rows(value) if isinstance(value, list) else value.copy()
        return state

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """See Resumable."""
        missing = {"episode/ended", *self._dynamics.row_state} - state.keys()
        if missing:
            raise ValueError(f"the saved state of {self.spec.id} has no {', '.join(sorted(missing))}")
        self._order.resume()
        self._tracker.load_state(
            {name.removeprefix("episode/"): array for name, array in state.items() if "/" in name}
        )
        for name in self._dynamics.row_state:
            value = getattr(self._dynamics, name)
            if isinstance(value, list):
                load_generator_rows(value, state[name])
            else:
                setattr(self._dynamics, name, state[name].copy())
