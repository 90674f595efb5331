"""Environments that are slow or fail on purpose, to try out what a run does then."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from hpcrl.data.specs import EnvSpec
from hpcrl.envs.base import Actions, Obs, Resumable, Step, VectorEnv

Fault = Literal["raise", "exit", "kill", "hang", "nan"]


class SlowEnv:
    """Takes `seconds` from `send` until `recv` returns, without using the processor.

    It behaves like a remote solver: work done between `send` and `recv` overlaps with the environment.
    """

    def __init__(self, env: VectorEnv, seconds: float = 0.01) -> None:
        self.spec: EnvSpec = replace(env.spec, id="slow")
        self.num_envs: int = env.num_envs
        self._env = env
        self._seconds = seconds
        self._done_at = 0.0

    def reset(self) -> Obs:
        """See VectorEnv."""
        return self._env.reset()

    def send(self, actions: Actions) -> None:
        """See VectorEnv."""
        self._env.send(actions)
        self._done_at = time.perf_counter() + self._seconds

    def recv(self) -> Step:
        """See VectorEnv."""
        time.sleep(max(0.0, self._done_at - time.perf_counter()))
        return self._env.recv()

    def state(self) -> dict[str, npt.NDArray[Any]] | None:
        """See Resumable."""
        return self._env.state() if isinstance(self._env, Resumable) else None

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """See Resumable."""
        if not isinstance(self._env, Resumable):
            raise ValueError("the environment behind this one cannot load a state")
        self._env.load_state(state)

    def close(self) -> None:
        """See VectorEnv."""
        self._env.close()


class FailingEnv:
    """Works for `at_step` env_steps, then fails.

    The fault is to `raise` an exception, `exit` the process with code 9, `kill` it by SIGKILL, `hang` for an
    hour, or give `nan` rewards from then on.
    """

    def __init__(self, env: VectorEnv, at_step: int, fault: Fault = "raise") -> None:
        if fault not in get_args(Fault):
            raise ValueError(f"fault={fault!r}; use one of {', '.join(get_args(Fault))}")
        self.spec: EnvSpec = replace(env.spec, id="failing")
        self.num_envs: int = env.num_envs
        self._env = env
        self._steps_left = at_step
        self._fault = fault

    def reset(self) -> Obs:
        """See VectorEnv."""
        return self._env.reset()

    def send(self, actions: Actions) -> None:
        """See VectorEnv."""
        self._env.send(actions)

    def recv(self) -> Step:
        """See VectorEnv. Fails when its time has come."""
        if self._steps_left > 0:
            self._steps_left -= 1
            return self._env.recv()
        if self._fault == "exit":
            os._exit(9)
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "hang":
            time.sleep(3600)
        if self._fault == "nan":
            return replace(self._env.recv(), reward=np.full(self.num_envs, np.nan, np.float32))
        raise RuntimeError("the failing environment fails, as it was told to")

    def close(self) -> None:
        """See VectorEnv."""
        self._env.close()
