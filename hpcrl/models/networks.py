"""The actor-critic network: torso, policy head, value head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from hpcrl.config import ConfigError, ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.functional.statistics import RunningMoments
from hpcrl.models.action_distributions import action_distribution
from hpcrl.models.recurrent import CELLS, Memory, Recurrent

SMALLEST_IMAGE = 36
"""Height and width below which the convolutions have no output left."""
HIDDEN_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class ActorCritic(nn.Module):
    """Policy and value of an observation.

    Orthogonal weights (gain sqrt 2 in the torso, 0.01 for the policy head, 1 for the value head); biases 0.

    Attributes:
        distribution: what the policy's outputs mean.
        normalizer: first layer of every torso; None unless observations are normalized.
        state_size: numbers that a recurrent network remembers per environment; 0 for one that is not recurrent.
    """

    def __init__(self, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        """Equal seeds give equal parameters; torch's global random state is neither read nor changed.

        Raises ConfigError when the torso does not fit the observations.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.distribution = action_distribution(env.action, model)
        self.normalizer = _normalizer(env, model)
        self.torso, width = _torso(env, model, self.normalizer, generator)
        self.value_torso = None if model.shared_torso else _torso(env, model, self.normalizer, generator)[0]
        self.cell = _cell(width, model, generator)
        self.value_cell = None if model.shared_torso else _cell(width, model, generator)
        sizes = [cell.state_size if cell is not None else 0 for cell in (self.cell, self.value_cell)]
        self.state_size = sum(sizes)
        self._policy_part, self._value_part = range(sizes[0]), range(sizes[0], self.state_size)
        width = width if self.cell is None else self.cell.size
        self.policy_head = _linear(width, self.distribution.num_outputs, POLICY_GAIN, generator)
        self.value_head = _linear(width, 1, VALUE_GAIN, generator)

    def forward(self, obs: Tensor, memory: Memory | None = None) -> tuple[Tensor, Tensor]:
        """Policy outputs and values.

        Args:
            obs: [N, *shape] in the environment's dtype; N may be 0.
            memory: for a recurrent network: obs are those of its sequences, time-major.

        Returns:
            float32 [N, distribution.num_outputs], and float32 [N], values.
        """
        features = self._policy_features(obs, memory)
        value_features = features if self.value_torso is None else self._value_features(obs, memory)
        return self.policy_head(features), self.value_head(value_features).squeeze(-1)

    def policy(self, obs: Tensor) -> Tensor:
        """Only the policy outputs of `forward`, all that acting needs.

        Calls the layers directly, past torch's hooks, whose bookkeeping costs as much as a small layer.
        """
        return self.policy_head.forward(self.torso.act(obs))

    def step(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`policy` of a recurrent network, for one env_step, and the state after it, [N, state_size] like that before.

        What a torso of the value remembers goes on too, so that a learner can start from it.
        """
        if self.cell is None:
            raise RuntimeError("this network is not recurrent; use `policy`")
        of_policy, of_value = (
            state[:, part.start : part.stop] for part in (self._policy_part, self._value_part)
        )
        after = self.cell.step(self.torso.act(obs), of_policy)
        policy = self.policy_head.forward(after[:, : self.cell.size])
        if self.value_torso is not None and self.value_cell is not None:
            value_after = self.value_cell.step(self.value_torso.act(obs), of_value)
            after = torch.cat((after, value_after), 1)
        return policy, after

    def value(self, obs: Tensor, memory: Memory | None = None) -> Tensor:
        """Only the values of `forward`."""
        return cast(Tensor, self.value_head(self._value_features(obs, memory)).squeeze(-1))

    def _policy_features(self, obs: Tensor, memory: Memory | None) -> Tensor:
        return _remembered(self.torso(obs), self.cell, memory, self._policy_part)

    def _value_features(self, obs: Tensor, memory: Memory | None) -> Tensor:
        if self.value_torso is None:
            return self._policy_features(obs, memory)
        return _remembered(self.value_torso(obs), self.value_cell, memory, self._value_part)


class Torso(nn.Sequential):
    """Layers in a row, whose matrix products and convolutions are taken in `precision`; features are float32.

    Parameters, and their gradients, are float32 all the same.
    """

    def __init__(self, layers: Sequence[nn.Module], precision: str) -> None:
        super().__init__(*layers)
        self._dtype = None if precision == "float32" else getattr(torch, precision)

    def forward(self, obs: Tensor) -> Tensor:
        """Features float32 [N, width] of obs [N, *shape]."""
        if self._dtype is None:
            return cast(Tensor, super().forward(obs))  # type: ignore[no-untyped-call]
        with torch.autocast(obs.device.type, self._dtype):
            features = super().forward(obs)  # type: ignore[no-untyped-call]
        return cast(Tensor, features.to(torch.float32))

    def act(self, obs: Tensor) -> Tensor:
        """As `forward`, past torch's hooks; float16 only where it is fast, which it is not on the CPU."""
        if self._dtype is None or (self._dtype == torch.float16 and obs.device.type == "cpu"):
            return self._through(obs)
        with torch.autocast(obs.device.type, self._dtype):
            features = self._through(obs)
        return features.to(torch.float32)

    def _through(self, obs: Tensor) -> Tensor:
        features = obs
        for layer in self:
            features = layer.forward(features)
        return features


class Vectors(nn.Module):
    """Observations of any numeric dtype and shape [N, ...] as float32 [N, features]."""

    def forward(self, obs: Tensor) -> Tensor:
        """Flatten and cast; no copy when nothing changes."""
        if obs.ndim == 2 and obs.dtype == torch.float32:
            return obs
        return obs.reshape(obs.shape[0], math.prod(obs.shape[1:])).to(torch.float32)


class Normalizer(nn.Module):
    """Observations [N, *shape] minus a mean, over a standard deviation, cut at `clip`, as float32.

    Mean and scale are buffers, which FlatParameters keeps behind the parameters: constants of a parameter version, so
    that whoever acts with a version sees what the learner of that version saw.
    """

    mean: Tensor
    inverse_std: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float) -> None:
        """At first observations are as they come, but for the cut."""
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("inverse_std", torch.ones(shape))

    def forward(self, obs: Tensor) -> Tensor:
        """Not in place: `obs` are the trajectory's. What is not finite becomes NaN, which no cut hides."""
        scaled = obs.to(torch.float32).sub(self.mean).mul_(self.inverse_std)
        return torch.clamp(scaled, -self.clip, self.clip).add_(scaled.mul_(0))

    def set(self, moments: RunningMoments, epsilon: float) -> None:
        """Mean and 1 / sqrt(variance + epsilon) of `moments` from here on, rounded to float32."""
        self.mean.copy_(moments.mean)
        self.inverse_std.copy_(moments.inverse_std(epsilon))


class Images(nn.Module):
    """uint8 images [N, C, H, W] as floats in [0, 1], in memory as [N, H, W, C] where `channels_last`."""

    def __init__(self, *, channels_last: bool) -> None:
        super().__init__()
        self._format = torch.channels_last if channels_last else torch.contiguous_format

    def forward(self, obs: Tensor) -> Tensor:
        """Scale by 1/255; in the precision in which the convolutions will take it, which rounds once either way."""
        images, device = obs.contiguous(memory_format=self._format), obs.device.type
        if torch.is_autocast_enabled(device):
            return images.to(torch.get_autocast_dtype(device)).mul_(1 / 255)
        return torch.mul(images, 1 / 255)


class InPlace(nn.Module):
    """tanh or relu, written over its input: one pass over memory less."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self._apply_in_place = torch.tanh_ if activation == "tanh" else torch.relu_

    def forward(self, features: Tensor) -> Tensor:
        """Overwrite `features`, which must be the output of a linear layer or a convolution."""
        return self._apply_in_place(features)


class BlankLinear(nn.Linear):
    """A linear layer whose own initialization, which draws from torch's global random state, is left out."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is; `_initialize` follows."""


class BlankConv2d(nn.Conv2d):
    """A convolution whose own initialization is left out; see BlankLinear."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is; `_initialize` follows."""


def _normalizer(env: EnvSpec, model: ModelConfig) -> Normalizer | None:
    shape, dtype = env.observation.shape, env.observation.dtype
    if not model.normalize_observations:
        return None
    if np.dtype(dtype).kind != "f":
        raise ConfigError(
            f"model.normalize_observations=true does not fit the {dtype} observations of {env.id}: it is for floats, "
            "since whole numbers are indices, flags or pixels; use model.normalize_observations=false"
        )
    return Normalizer(shape, model.observation_clip)


def _cell(width: int, model: ModelConfig, generator: torch.Generator) -> Recurrent | None:
    """What stands behind a torso of this width."""
    if model.recurrent == "none":
        return None
    return CELLS[model.recurrent](width, model.recurrent_size, generator)


def _remembered(features: Tensor, cell: Recurrent | None, memory: Memory | None, part: range) -> Tensor:
    """What the heads see of the features [N, width]: these, or what the cell makes of them."""
    if cell is None:
        return features
    if memory is None:
        raise ValueError(
            "a recurrent network needs its memory: where each sequence of observations starts from"
        )
    return cell.unroll(features, memory.part(part))


def _torso(
    env: EnvSpec, model: ModelConfig, normalizer: Normalizer | None, generator: torch.Generator
) -> tuple[Torso, int]:
    """Torso and the width of its output."""
    if model.torso == "nature_cnn":
        layers, width = _nature_convolutions(env, model, generator)
    else:
        layers, width = [*([] if normalizer is None else [normalizer]), Vectors()], _vector_width(env)
    for size in model.hidden_sizes:
        layers += [_linear(width, size, HIDDEN_GAIN, generator), InPlace(model.activation)]
        width = size
    return Torso(layers, model.precision), width


def _vector_width(env: EnvSpec) -> int:
    shape, dtype = env.observation.shape, env.observation.dtype
    if dtype == "uint8" and len(shape) == 3:
        raise ConfigError(
            f"model.torso=mlp does not fit the uint8 images {shape} of {env.id}; use model.torso=nature_cnn"
        )
    if np.dtype(dtype).kind not in "biuf" or 0 in shape:
        raise ConfigError(
            f"model.torso=mlp does not fit the observations of {env.id}, shape {shape} and dtype {dtype}; "
            "it takes real numbers, at least one: change env.id, or wrap it with env.engine=custom"
        )
    return math.prod(shape)


def _nature_convolutions(
    env: EnvSpec, model: ModelConfig, generator: torch.Generator
) -> tuple[list[nn.Module], int]:
    """Convolutions of Mnih et al. 2015 and the width of their flattened output."""
    shape, dtype = env.observation.shape, env.observation.dtype
    if dtype != "uint8" or len(shape) != 3 or min(shape[1:]) < SMALLEST_IMAGE or shape[0] == 0:
        raise ConfigError(
            f"model.torso=nature_cnn does not fit the {dtype} observations {shape} of {env.id}; it takes "
            f"uint8 images [channels, height, width] of {SMALLEST_IMAGE} x {SMALLEST_IMAGE} or more: "
            "use model.torso=mlp for anything else"
        )
    channels, height, width = shape
    layers: list[nn.Module] = [Images(channels_last=model.channels_last)]
    for out_channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        convolution = BlankConv2d(channels, out_channels, kernel, stride)
        _initialize(convolution, HIDDEN_GAIN, generator)
        layers += [convolution, InPlace(model.activation)]
        channels = out_channels
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return [*layers, nn.Flatten()], channels * height * width


def _linear(width: int, size: int, gain: float, generator: torch.Generator) -> nn.Linear:
    layer = BlankLinear(width, size)
    _initialize(layer, gain, generator)
    return layer


def _initialize(layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator) -> None:
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
