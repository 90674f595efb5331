"""Discounted returns of running episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class DiscountedReturns:
    """Of B environment slots: ret <- gamma * ret + reward on each env_step, from 0 at the start of every episode.

    Attributes:
        carried: float32 [B], what goes over into the next env_step; 0 after an end.
    """

    def __init__(self, num_envs: int, gamma: float, carried: Floats | None = None) -> None:
        """`carried`: to go on from; None: every slot is at the start of an episode."""
        self.carried: Floats = np.zeros(num_envs, np.float32) if carried is None else carried
        self._gamma = gamma

    def step(self, reward: Floats, ended: npt.NDArray[Any]) -> Floats:
        """Float32 [B], up to and including this env_step. reward: float32 [B], 0 on a reset step; ended: bool [B].

        An end is a terminal state or a truncation: in both cases the next reward belongs to another episode.
        """
        returns = self._gamma * self.carried + reward
        self.carried = np.where(ended, np.float32(0), returns)
        return returns
