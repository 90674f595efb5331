"""Running moments of observations and returns: what the learners normalize by, and how it comes about.

Both are counted once per batch of fresh data, after its update, over the valid env_steps of all learners, so they do
not depend on epochs, minibatches or how a batch is divided. A whole update sees one fixed set of moments.

Observations. Mean and scale lie behind the parameters in the vector that is published: an actor acts under exactly the
moments of its parameter version. Since they change only after an update, the log-probability of data without lag is the
behavior's to the bit, and the ratio of the first gradient step is 1. Older data are seen under the learner's moments as
they are now, like under its weights as they are now; their behavior_log_prob stays what it was, so the ratio accounts
for both.

Returns. Training rewards are divided by the standard deviation of discounted returns, ret <- gamma * ret + reward for
each environment slot, starting at 0 with each episode, also after a truncation: the next reward belongs to another
episode. The actors keep the returns and send them along: they depend on no parameters and no version, only on the
rewards, so nothing can drift however old the data are, and they do not depend on where trajectories are cut. Only the
learners hold the scale, and so one update has one scale. (Normalizing value targets instead would make the scale depend
on bootstrapped values, and those on the scale of the updates before.) The mean of rewards is not subtracted: that would
change which policy is best where the length of an episode depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.base import Reducer
from hpcrl.functional.statistics import RunningMoments, moments_of, sum_moments

RETURN_EPSILON = 1e-8
"""Added to the variance of returns, so that rewards that are always 0 do not divide by zero."""


class FieldMoments:
    """Running moments of one field of the batches. Equal on all learners.

    Attributes:
        moments: of everything counted so far, float64, on the CPU.
    """

    def __init__(self, field: str, features: tuple[int, ...]) -> None:
        self._field = field
        self.moments = RunningMoments.nothing(features)

    def count(self, fields: Mapping[str, Tensor], reducer: Reducer) -> None:
        """Add the valid env_steps [T, C] of a batch that was never counted before.

        Collective over the learners: two calls of the reducer, whatever this learner's share. Observations after the
        last env_step of a trajectory are left to the next one, which begins with them. A batch in which any of the
        values is not finite is not counted.
        """
        valid = fields["valid"]
        values = fields[self._field][: len(valid)]
        own = moments_of(values.flatten(0, 1), valid.flatten())
        fresh = sum_moments(own, reducer.sum_)
        if torch.isfinite(fresh.squares).all():  # equal on all learners
            self.moments = self.moments.merge(fresh)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Entries of a checkpoint, named after the field; copies."""
        moments = self.moments
        return {
            f"{self._field}_count": np.array(moments.count, np.float64),
            f"{self._field}_mean": moments.mean.numpy().copy(),
            f"{self._field}_squares": moments.squares.numpy().copy(),
        }

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`, whose shapes are right."""
        count, mean, squares = (state[f"{self._field}_{name}"] for name in ("count", "mean", "squares"))
        self.moments = RunningMoments(float(count), torch.tensor(mean), torch.tensor(squares))
