"""What a policy's outputs mean: one small object per kind of action."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hpcrl.config import ConfigError, ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.functional.distributions import (
    Floats,
    categorical,
    gaussian,
    multi_categorical,
    sample_categorical,
    sample_gaussian,
    sample_multi_categorical,
    sample_tanh_gaussian,
    tanh_gaussian,
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


class MultiCategorical(ActionDistribution):
    """One of choices[i] choices of each part i; the outputs are the logits of all parts, one after the other."""

    def __init__(self, choices: tuple[int, ...]) -> None:
        super().__init__()
        self.num_outputs = sum(choices)
        self._choices = choices

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """As ActionDistribution.evaluate."""
        return multi_categorical(outputs, self._choices, action)

    def sample(self, outputs: Floats, rng: np.random.Generator, *, greedy: bool) -> tuple[Actions, Floats]:
        """As ActionDistribution.sample."""
        return sample_multi_categorical(outputs, self._choices, rng, greedy=greedy)


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


class TanhGaussian(ActionDistribution):
    """Independent normals u, whose means are the outputs; the environment gets tanh(u), scaled to [low, high].

    Stored is u, from which alone the density of the action can be told when the tanh is saturated. Densities are those
    of the scaled action.

    Attributes:
        log_std: float32 [size], log standard deviations of u.
    """

    def __init__(self, low: Sequence[float], high: Sequence[float], initial_log_std: float) -> None:
        super().__init__()
        self.num_outputs = len(low)
        self.log_std = nn.Parameter(torch.full((len(low),), initial_log_std))
        self._bounds = Bounds(low, high)
        self._half_width = self._bounds.half_width

    def evaluate(self, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """As ActionDistribution.evaluate; the entropy is integrated, see functional.distributions.tanh_gaussian."""
        half_width = torch.from_numpy(self._half_width).to(outputs.device)
        return tanh_gaussian(outputs, self.log_std, half_width, action)

    def sample(self, outputs: Floats, rng: np.random.Generator, *, greedy: bool) -> tuple[Actions, Floats]:
        """As ActionDistribution.sample; greedy takes the means of u."""
        log_std = self.log_std.detach().cpu().numpy()
        return sample_tanh_gaussian(outputs, log_std, self._half_width, rng, greedy=greedy)

    def to_env(self, action: Actions) -> Actions:
        """As ActionDistribution.to_env: center + half_width * tanh(u), never outside the bounds by its rounding."""
        return self._bounds.scaled(np.tanh(action))


class Bounds:
    """The bounds of continuous actions, and what lies between.

    Attributes:
        half_width: float32 [size], half of high - low.
    """

    def __init__(self, low: Sequence[float], high: Sequence[float]) -> None:
        below, above = np.array(low, np.float64), np.array(high, np.float64)
        self.half_width = ((above - below) / 2).astype(np.float32)
        self._center = ((below + above) / 2).astype(np.float32)
        self._low, self._high = below.astype(np.float32), above.astype(np.float32)

    def scaled(self, actions: Actions) -> Floats:
        """What lies at `actions` [B, size], where -1 is low and 1 is high; never outside the bounds by its rounding."""
        scaled = self._center + self.half_width * actions
        return np.asarray(np.clip(scaled, self._low, self._high), np.float32)


def require_bounds(env: EnvSpec, key: str, instead: str) -> None:
    """Raises ConfigError unless each dimension of continuous actions has bounds, which `key`, name and value, needs."""
    action = env.action
    for index, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(
                f"{key} does not fit the actions of {env.id}: dimension {index} of {action.size} has the bounds "
                f"[{low}, {high}], to which nothing can be scaled; use {instead}"
            )


def action_distribution(env: EnvSpec, model: ModelConfig) -> ActionDistribution:
    """The distribution that a model has over an environment's actions.

    Raises ConfigError when model.action_distribution does not fit them.
    """
    action, wanted = env.action, model.action_distribution
    if action.kind != "continuous":
        if wanted != "auto":
            raise ConfigError(
                f"model.action_distribution={wanted} does not fit the {action.kind} actions of {env.id}; use auto"
            )
        return Categorical(action.size) if action.kind == "discrete" else MultiCategorical(action.choices)
    if wanted != "tanh_gaussian":
        return Gaussian(action.size, model.initial_log_std)
    require_bounds(env, "model.action_distribution=tanh_gaussian", "gaussian")
    return TanhGaussian(action.low, action.high, model.initial_log_std)
