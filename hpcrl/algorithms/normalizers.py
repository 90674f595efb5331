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
from hpcrl.config import AlgorithmConfig, ModelConfig
from hpcrl.data.specs import DISCOUNTED_RETURN
from hpcrl.functional.statistics import RunningMoments, moments_of, sum_moments
from hpcrl.models.torsos import Normalizer

RETURN_EPSILON = 1e-8
"""Added to the variance of returns, so that rewards that are always 0 do not divide by zero."""


class Normalizers:
    """The running moments of one algorithm, as far as its configuration asks for them. Equal on all learners.

    Attributes:
        moments: "obs" and "discounted_return" -> of everything counted so far, float64, on the CPU.
    """

    def __init__(self, config: AlgorithmConfig, model: ModelConfig, normalizer: Normalizer | None) -> None:
        """`normalizer`: of the network; it is set here."""
        self.moments: dict[str, RunningMoments] = {}
        self._normalizer, self._epsilon = normalizer, model.observation_epsilon
        self._limit = config.normalized_reward_clip
        if normalizer is not None:
            self.moments["obs"] = RunningMoments.nothing(tuple(normalizer.mean.shape))
        if config.normalize_returns:
            self.moments[DISCOUNTED_RETURN.name] = RunningMoments.nothing(())

    def count(self, fields: Mapping[str, Tensor], reducer: Reducer) -> None:
        """Add the valid env_steps [T, C] of a batch that was never counted before.

        Collective over the learners: two calls of the reducer for each field, whatever this learner's share.
        Observations after the last env_step of a trajectory are left to the next one, which begins with them. A field
        in which any of the values is not finite is not counted.
        """
        valid = fields["valid"]
        for name, before in self.moments.items():
            values = fields[name][: len(valid)]
            own = moments_of(values.flatten(0, 1), valid.flatten())
            fresh = sum_moments(own, reducer.sum_)
            if torch.isfinite(fresh.squares).all():  # equal on all learners
                self.moments[name] = before.merge(fresh)
        if self._normalizer is not None:
            self._normalizer.set(self.moments["obs"], self._epsilon)

    def scale_reward(self, reward: Tensor) -> Tensor:
        """Rewards, any shape, over the standard deviation of returns, clipped; what is not finite becomes NaN."""
        scaled = reward * self.moments[DISCOUNTED_RETURN.name].inverse_std(RETURN_EPSILON).item()
        return scaled.clamp(-self._limit, self._limit) + 0 * scaled

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Entries of a checkpoint, named after the fields; copies."""
        entries = {}
        for name, moments in self.moments.items():
            entries[f"{name}_count"] = np.array(moments.count, np.float64)
            entries[f"{name}_mean"] = moments.mean.numpy().copy()
            entries[f"{name}_squares"] = moments.squares.numpy().copy()
        return entries

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`, which `check_state` has checked. What the network holds is among its parameters."""
        for name in self.moments:
            count, mean, squares = (state[f"{name}_{part}"] for part in ("count", "mean", "squares"))
            self.moments[name] = RunningMoments(float(count), torch.tensor(mean), torch.tensor(squares))
