"""What turns observations into features: layers for vectors, images, and a user's own module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from hpcrl.config import ConfigError, ModelConfig
from hpcrl.config.model import SMALLEST_IMAGE
from hpcrl.data.specs import EnvSpec
from hpcrl.functional.statistics import RunningMoments
from hpcrl.models.user_torso import user_torso

HIDDEN_GAIN = math.sqrt(2)
RESIDUAL_GAIN = math.sqrt(1 / 3)
"""Of the last convolution of a residual block: six blocks then raise the variance 2.5-fold, not 64-fold."""


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
            return self._through(obs)
        with torch.autocast(obs.device.type, self._dtype):
            features = self._through(obs)
        return features.to(torch.float32)

    def act(self, obs: Tensor) -> Tensor:
        """As `forward`; float16 only where it is fast, which it is not on the CPU."""
        if self._dtype is None or (self._dtype == torch.float16 and obs.device.type == "cpu"):
            return self._through(obs)
        return self.forward(obs)

    def _through(self, obs: Tensor) -> Tensor:
        """Calls the layers past torch's hooks, whose bookkeeping costs as much as a small layer."""
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


def make_normalizer(env: EnvSpec, model: ModelConfig) -> Normalizer | None:
    """First layer of every torso for env.features; None unless model.normalize_observations asks for it."""
    shape, dtype = env.features.shape, env.features.dtype
    if not model.normalize_observations:
        return None
    if np.dtype(dtype).kind != "f":
        raise ConfigError(
            f"model.normalize_observations=true does not fit the {dtype} observations of {env.id}: it is for floats, "
            "since whole numbers are indices, flags or pixels; use model.normalize_observations=false"
        )
    return Normalizer(shape, model.observation_clip)


def make_torso(
    env: EnvSpec, model: ModelConfig, normalizer: Normalizer | None, generator: torch.Generator
) -> tuple[Torso, int]:
    """Torso for env.features and the width of its output. Raises ConfigError when they do not fit each other."""
    if model.torso == "nature_cnn":
        layers, width = _nature_convolutions(env, model, generator)
    elif model.torso == "impala_resnet":
        layers, width = _residual_sections(env, model, generator)
    elif model.torso == "mlp":
        layers, width = [Vectors()], _vector_width(env)
    else:
        layers, width = user_torso(model.torso, env, generator)
    if normalizer is not None:
        layers = [normalizer, *layers]
    for size in model.hidden_sizes:
        layers += [make_linear(width, size, HIDDEN_GAIN, generator), InPlace(model.activation)]
        width = size
    return Torso(layers, model.precision), width


def _vector_width(env: EnvSpec) -> int:
    shape, dtype = env.features.shape, env.features.dtype
    if dtype == "uint8" and len(shape) == 3:
        raise ConfigError(
            f"model.torso=mlp does not fit the uint8 images {shape} of {env.id}; "
            "use model.torso=nature_cnn or impala_resnet"
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
    shape, dtype = env.features.shape, env.features.dtype
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


def _residual_sections(
    env: EnvSpec, model: ModelConfig, generator: torch.Generator
) -> tuple[list[nn.Module], int]:
    """The larger network of Espeholt et al. 2018 (figure 3), up to its hidden layer, and the width of its output."""
    shape, dtype = env.features.shape, env.features.dtype
    if dtype != "uint8" or len(shape) != 3 or 0 in shape:
        raise ConfigError(
            f"model.torso=impala_resnet does not fit the {dtype} observations {shape} of {env.id}; it takes uint8 "
            "images [channels, height, width]: use model.torso=mlp for anything else"
        )
    channels, height, width = shape
    layers: list[nn.Module] = [Images(channels_last=model.channels_last)]
    for out_channels in (16, 32, 32):
        layers.append(_convolution(channels, out_channels, 1.0, generator))
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        layers += [Residual(out_channels, generator) for _ in range(2)]
        channels, height, width = out_channels, (height + 1) // 2, (width + 1) // 2
    return [*layers, nn.ReLU(), nn.Flatten()], channels * height * width


class Residual(nn.Module):
    """x + convolution(relu(convolution(relu(x))))."""

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = _convolution(channels, channels, HIDDEN_GAIN, generator)
        self.second = _convolution(channels, channels, RESIDUAL_GAIN, generator)

    def forward(self, features: Tensor) -> Tensor:
        """float32 [N, channels, H, W], as `features`, which are left as they are."""
        inner = self.first(torch.relu(features))
        return features + cast(Tensor, self.second(torch.relu_(inner)))


def _convolution(channels: int, out_channels: int, gain: float, generator: torch.Generator) -> nn.Conv2d:
    """3 x 3, as large as its input."""
    layer = BlankConv2d(channels, out_channels, 3, padding=1)
    _initialize(layer, gain, generator)
    return layer


def make_linear(width: int, size: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """A layer with orthogonal weights and zero biases."""
    layer = BlankLinear(width, size)
    _initialize(layer, gain, generator)
    return layer


def _initialize(layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator) -> None:
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def floats_per_row(env: EnvSpec, model: ModelConfig) -> int:
    """About how many numbers one observation keeps alive during an update, to bound the memory of large images."""
    size = math.prod(env.observation.shape)
    return 16 * size if model.torso == "impala_resnet" else size
