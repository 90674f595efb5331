"""One gradient step over all learners: flat Adam, and the reduction that comes before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hpcrl.algorithms.base import Reducer
from hpcrl.models.flat import FlatParameters

BETA1, BETA2 = 0.9, 0.999
NORM_EPSILON = 1e-6
"""Keeps the clip of a zero gradient from dividing by zero."""


class FlatAdam:
    """Adam (Kingma and Ba 2015) for `FlatParameters`; the numbers of torch.optim.Adam up to rounding.

    Written out because constructing torch.optim.Adam imports torch's compiler: a second of start-up on every
    rank, actors included, and for small networks most of the time of a step.

    Attributes:
        exp_avg, exp_avg_sq: float32 [size], the moments.
        steps: gradient steps taken.
    """

    def __init__(self, parameters: FlatParameters, epsilon: float) -> None:
        self._parameters = parameters
        self._epsilon = epsilon
        self.exp_avg = torch.zeros_like(parameters.vector)
        self.exp_avg_sq = torch.zeros_like(parameters.vector)
        self.steps = 0

    def step(self, learning_rate: float) -> None:
        """Move the parameters against their `gradient`, in place."""
        gradient = self._parameters.gradient
        self.steps += 1
        self.exp_avg.lerp_(gradient, 1 - BETA1)
        self.exp_avg_sq.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        denominator = self.exp_avg_sq.sqrt().div_(math.sqrt(1 - BETA2**self.steps)).add_(self._epsilon)
        step_size = learning_rate / (1 - BETA1**self.steps)
        self._parameters.vector.addcdiv_(self.exp_avg, denominator, value=-step_size)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Copy the parameters and what `step` carries from one call to the next."""
        return {
            "parameters": self._parameters.numpy.copy(),
            "adam_exp_avg": self.exp_avg.numpy().copy(),
            "adam_exp_avg_sq": self.exp_avg_sq.numpy().copy(),
            "adam_steps": np.array(self.steps, np.int64),
        }

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state` bit for bit.

        Raises ValueError naming a missing or misshaped entry; nothing has changed then.
        """
        for name, current in self.state().items():
            if name not in state:
                raise ValueError(f"state has no entry {name!r}; it has {', '.join(sorted(state)) or 'none'}")
            given = np.asarray(state[name])
            if given.shape != current.shape or given.dtype != current.dtype:
                raise ValueError(
                    f"state entry {name!r} has shape {given.shape} and dtype {given.dtype}; this network has "
                    f"{current.shape} and {current.dtype}: was it saved with another model or env section?"
                )
        self._parameters.load(np.asarray(state["parameters"]))
        self.exp_avg.numpy()[...] = state["adam_exp_avg"]
        self.exp_avg_sq.numpy()[...] = state["adam_exp_avg_sq"]
        self.steps = int(state["adam_steps"])


@dataclass(frozen=True, slots=True)
class ReducedGradient:
    """What `reduce_gradient` found. Equal on all learners."""

    samples: float
    """valid env_steps behind the gradient, over all learners; 0: there is nothing to step along"""
    norm: float
    """L2 norm of the averaged gradient, not yet clipped"""
    extra: float
    """sum of one number that each learner gave; not finite where a loss was not"""

    @property
    def finite(self) -> bool:
        """False when any learner gave a NaN or an infinity: the step must not be taken."""
        return math.isfinite(self.norm) and math.isfinite(self.extra)


def reduce_gradient(
    parameters: FlatParameters, samples: int, extra: float, reducer: Reducer, max_norm: float
) -> ReducedGradient:
    """Turn the local gradient into the global mean, its norm clipped to `max_norm`, in place.

    Collective over the learners: one call of the reducer. The gradient on entry is that of a sum over
    `samples` valid env_steps of this learner; averaging and clipping come after the reduction, so the
    result does not depend on how the samples are divided.
    """
    size = parameters.size
    vector = torch.empty(size + 2)
    vector[:size] = parameters.gradient
    vector[size], vector[size + 1] = samples, extra
    reducer.sum_(vector)
    total, extra_sum = vector[size:].tolist()
    torch.div(vector[:size], max(total, 1.0), out=parameters.gradient)
    # In float64 the squares of finite float32 numbers cannot overflow: not finite means an entry is not.
    norm = float(torch.linalg.vector_norm(parameters.gradient, dtype=torch.float64))
    if norm > max_norm:
        parameters.gradient.mul_(max_norm / (norm + NORM_EPSILON))
    return ReducedGradient(total, norm, extra_sum)
