"""An algorithm at work in some environments: what it remembers of each, from one env_step to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.algorithms.base import Algorithm, State, Vector


class Acting:
    """Chooses for the same B environments again and again. Local; whoever acts has one for each group of them.

    Attributes:
        state: float32 [B, size], where the next `act` starts from; None for an algorithm that remembers nothing.
    """

    def __init__(self, algorithm: Algorithm, num_envs: int, state: State | None = None) -> None:
        """`state`: to go on from, as it was saved; None: every environment begins an episode."""
        self._algorithm = algorithm
        self._initial = algorithm.initial_state(num_envs)
        self.state = self._initial if state is None or self._initial is None else state
        if self.state is not None:
            self.state = self.state.copy()

    def act(
        self,
        obs: npt.NDArray[Any],
        rng: np.random.Generator,
        *,
        greedy: bool = False,
        exploration: Vector | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """What Algorithm.act gives for obs [B, ...]; its state is kept for the next call."""
        given: dict[str, Any] = {"state": self.state, "exploration": exploration}
        # the algorithm may know of neither
        chosen = self._algorithm.act(
            obs, rng, greedy=greedy, **{k: v for k, v in given.items() if v is not None}
        )
        if self.state is not None:
            self.state = chosen["state"]
        return chosen

    def restart(self, begins: npt.NDArray[np.bool_]) -> None:
        """Forget all in the rows [B] that are True: the next observation there is the first of an episode."""
        if self.state is not None and self._initial is not None and begins.any():
            self.state[begins] = self._initial[begins]


def frozen_policy(
    algorithm: Algorithm, num_envs: int, seed: int, *, greedy: bool
) -> Callable[[npt.NDArray[Any], npt.NDArray[np.bool_]], npt.NDArray[Any]]:
    """The algorithm as it is, for `run_episodes` in `num_envs` environments. Local; learns nothing.

    Gets obs [B, ...] and where these begin an episode [B]; gives what the environments get, [B, ...]. `seed`: of what
    is drawn where it is not `greedy`.
    """
    acting, rng = Acting(algorithm, num_envs), np.random.default_rng(seed)

    def act(obs: npt.NDArray[Any], begins: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        acting.restart(begins)
        return algorithm.to_env(acting.act(obs, rng, greedy=greedy)["action"])

    return act
