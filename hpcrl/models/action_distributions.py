"""What a policy's outputs mean: one small object per kind of action."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hpcrl.config import ModelConfig
from hpcrl.data.specs import ActionSpec
from hpcrl.functional.distributions import (
    Floats,
    categorical,
    gaussian,
    sample_categorical,
    sample_gaussian,
)

Actions = npt.NDArray[Any]


class ActionDistribution(nn.Module):
    """Distribution over the actions that a trajectory stores, given the network's outputs.

    A module because it may have parameters of its own, which do not depend on the observation.

    Attributes:
        num_outputs: numbers that the network gives per observation.
    """

    num_outputs: int

    @abstractmethod
    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy (nat), both [N] and sums over the parts or dimensions; the gradient flows.

        outputs: [N, num_outputs]; action: [N, *action.shape], as stored.
        """

    @abstractmethod
    def sample(self, outputs: Floats, rng: np.random.Generator, *, greedy: bool) -> tuple[Actions, Floats]:
        """Actions [B, *action.shape] to store, and their float32 log-probabilities [B]; greedy: the most likely.

        outputs: float32 [B, num_outputs].
        """

    def to_env(self, action: Actions) -> Actions:
        """What the environment gets for stored actions [B, *action.shape], of the same shape and dtype."""
        return action


class Categorical(ActionDistribution):
    """One of `size` choices; the outputs are logits, -infinity where a choice is not allowed."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.num_outputs = size

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """As ActionDistribution.evaluate."""
        return categorical(outputs, action)

    def sample(self, outputs: Floats, rng: np.random.Generator, *, greedy: bool) -> tuple[Actions, Floats]:
        """As ActionDistribution.sample."""
        return sample_categorical(outputs, rng, greedy=greedy)


class Gaussian(ActionDistribution):
    """Independent normals; the outputs are the means. Stored as sampled, not clipped to any bounds.

    Attributes:
        log_std: float32 [size], log standard deviations.
    """

    def __init__(self, size: int, initial_log_std: float) -> None:
        super().__init__()
        self.num_outputs = size
        self.log_std = nn.Parameter(torch.full((size,), initial_log_std))

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """As ActionDistribution.evaluate."""
        return gaussian(outputs, self.log_std, action)

    def sample(self, outputs: Floats, rng: np.random.Generator, *, greedy: bool) -> tuple[Actions, Floats]:
        """As ActionDistribution.sample."""
        return sample_gaussian(outputs, self.log_std.detach().cpu().numpy(), rng, greedy=greedy)


def action_distribution(action: ActionSpec, model: ModelConfig) -> ActionDistribution:
    """The distribution that a model has over an environment's actions."""
    if action.kind == "discrete":
        return Categorical(action.size)
    return Gaussian(action.size, model.initial_log_std)
