"""The loss scale of float16."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.algorithms.gradient import ReducedGradient

INITIAL_LOSS_SCALE, SMALLEST_LOSS_SCALE, LARGEST_LOSS_SCALE = 2.0**8, 2.0**-20, 2.0**24
"""Of a loss that is a sum over samples, not a mean."""
GROWTH_STEPS = 500
"""Finite gradient steps in a row after which the loss scale is doubled."""


class LossScale:
    """The factor of the loss that keeps gradients inside float16's range (Micikevicius et al. 2018).

    Doubled after GROWTH_STEPS gradient steps in a row that were finite; halved by one that was not, which is left out.
    Decided on reduced gradients alone, so it is the same on all learners.

    Attributes:
        value: the factor; 1 for ever where it is not `dynamic`.
    """

    def __init__(self, *, dynamic: bool) -> None:
        self._dynamic = dynamic
        self.value = INITIAL_LOSS_SCALE if dynamic else 1.0
        self._steps = 0

    def skips(self, gradient: ReducedGradient) -> bool:
        """Adapt to a gradient; whether it overflowed, and the step is to be left out.

        False for what is not finite for another reason: a loss that is not, or the factor is as small as it gets.
        """
        if not self._dynamic or not math.isfinite(gradient.extra):
            return False
        if math.isfinite(gradient.norm):
            self._steps += 1
            if self._steps == GROWTH_STEPS:
                self.value, self._steps = min(2 * self.value, LARGEST_LOSS_SCALE), 0
            return False
        self._steps = 0
        if self.value <= SMALLEST_LOSS_SCALE:
            return False
        self.value /= 2
        return True

    @property
    def metrics(self) -> dict[str, float]:
        """What an update logs of it."""
        return {"loss_scale": self.value} if self._dynamic else {}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Factor and finite steps in a row; nothing where it is not dynamic."""
        if not self._dynamic:
            return {}
        return {"loss_scale": np.array(self.value), "loss_scale_steps": np.array(self._steps, np.int64)}

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`, which `check_state` has checked."""
        if self._dynamic:
            self.value, self._steps = float(state["loss_scale"]), int(state["loss_scale_steps"])
