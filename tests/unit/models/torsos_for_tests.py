"""Torsos of a user, sound and not; named as `tests.unit.models.torsos_for_tests:...`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hpcrl.data.specs import ArraySpec


class Sound(nn.Module):
    """A layer, a constant buffer, and a hook on itself, which must be called."""

    def __init__(self, observation: ArraySpec) -> None:
        super().__init__()
        self.observation = observation
        self.layer = nn.Linear(math.prod(observation.shape), 7)
        self.register_buffer("shift", torch.randn(7))
        self.register_forward_hook(lambda module, given, result: result + 1)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.relu(self.layer(obs.flatten(1).float()) + self.shift)


class Lazy(nn.Module):
    def __init__(self, observation: ArraySpec) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(5)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs.flatten(1).float())


class WithBatchNorm(Sound):
    def __init__(self, observation: ArraySpec) -> None:
        super().__init__(observation)
        self.norm = nn.BatchNorm1d(7)

    def forward(self, obs: Tensor) -> Tensor:
        return self.norm(super().forward(obs))


class WithDropout(WithBatchNorm):
    def __init__(self, observation: ArraySpec) -> None:
        super().__init__(observation)
        self.norm = nn.Dropout(0.5)


class MixesRows(Sound):
    def forward(self, obs: Tensor) -> Tensor:
        features = super().forward(obs)
        return features - features.mean(0)


class InDouble(Sound):
    def __init__(self, observation: ArraySpec) -> None:
        super().__init__(observation)
        self.scale = nn.Parameter(torch.ones(7, dtype=torch.float64))

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs) * self.scale.float()


class Frozen(Sound):
    def __init__(self, observation: ArraySpec) -> None:
        super().__init__(observation)
        self.layer.requires_grad_(False)


class Overwrites(Sound):
    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs.add_(1))


class ReturnsTwo(nn.Flatten):
    def __init__(self, observation: ArraySpec) -> None:
        super().__init__()

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return obs, obs


class ReturnsSquare(Sound):
    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs)[:, None]


class ReturnsDouble(Sound):
    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs).double()


class Raises(Sound):
    def forward(self, obs: Tensor) -> Tensor:
        raise RuntimeError("shapes do not match")


class WithoutArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()


def function(observation: ArraySpec) -> nn.Module:
    return Sound(observation)
