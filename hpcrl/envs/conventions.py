"""The counting environment as other engines would offer it, to test adapters against each other.

`CountingGymEnv` goes into gymnasium's vector environments (next-step, same-step and disabled autoreset);
`CountingPool` behaves like EnvPool. Their episodes are those of `hpcrl.envs.toy.Counting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from hpcrl.envs.toy import Counting


class CountingGymEnv(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """One counting environment: [step, tag], ends in turn by termination at 5 and truncation at 7."""

    def __init__(self, index: int = 0) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 7, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._parity = index % 2
        self._step = 0
        self._tag = 0.0
        self.steps_taken = 0
        """Calls of `step` so far."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """See gymnasium.Env."""
        super().reset(seed=seed)
        self._step = 0
        self._tag = self.np_random.random()
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """See gymnasium.Env."""
        self._step += 1
        self.steps_taken += 1
        terminated = self._parity == 0 and self._step == 5
        truncated = self._parity == 1 and self._step == 7
        if terminated or truncated:
            self._parity = 1 - self._parity
        return self._observation(), float(self._step), terminated, truncated, {}

    def _observation(self) -> npt.NDArray[np.float32]:
        return np.asarray([self._step, self._tag], np.float32)


class CountingPool:
    """Counting environments with EnvPool's interface: reset, send and recv with env_id and elapsed_step.

    Rows come in another order every time, as they may from EnvPool's threads.
    """

    observation_space = gymnasium.spaces.Box(0, 7, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        self.config = {"num_envs": len(seeds), "max_episode_steps": 7}
        self._dynamics = Counting(indices, seeds, tagged=True)
        self._ended = np.zeros(len(seeds), bool)
        self._calls = 0
        self._actions: npt.NDArray[Any] = np.zeros(len(seeds), np.int64)

    def reset(self) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """See EnvPool."""
        self._dynamics.restart(np.ones(len(self._ended), bool))
        order = self._order()
        obs = self._dynamics.observe()[order]
        return obs, {"env_id": order, "elapsed_step": obs[:, 0].astype(np.int32)}

    def send(self, actions: npt.NDArray[Any]) -> None:
        """See EnvPool."""
        self._actions = actions

    def recv(self) -> tuple[npt.NDArray[Any], ...]:
        """See EnvPool."""
        restarted = self._ended
        outcome = self._dynamics.advance(self._actions, ~restarted)
        self._dynamics.restart(restarted)
        self._ended = outcome.terminated | outcome.truncated
        reward = np.where(restarted, 0.0, outcome.reward).astype(np.float32)
        order = self._order()
        obs = self._dynamics.observe()[order]
        info: Any = {"env_id": order, "elapsed_step": obs[:, 0].astype(np.int32)}
        return obs, reward[order], outcome.terminated[order], outcome.truncated[order], info

    def close(self) -> None:
        """See EnvPool."""

    def _order(self) -> npt.NDArray[np.int32]:
        self._calls += 1
        return np.roll(np.arange(len(self._ended), dtype=np.int32), self._calls)
