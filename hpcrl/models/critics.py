"""Networks for continuous actions: a policy, and critics that give the value of an observation and an action."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from hpcrl.config import ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.models.networks import POLICY_GAIN, VALUE_GAIN
from hpcrl.models.torsos import HIDDEN_GAIN, InPlace, make_linear, make_torso


class EnsembleLinear(nn.Module):
    """K linear layers side by side, in one product: orthogonal weights, each for itself, and zero biases.

    Attributes:
        weight: float32 [K, size, width].
        bias: float32 [K * size], a vector like any other bias.
    """

    def __init__(self, count: int, width: int, size: int, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, size, width))
        for weight in self.weight.data:
            nn.init.orthogonal_(weight, gain, generator=generator)
        self.bias = nn.Parameter(torch.zeros(count * size))

    def forward(self, features: Tensor, *, frozen: bool) -> Tensor:
        """[K, N, size] of features [K, N, width]. frozen: weights and biases are constants, which get no gradient."""
        weight, bias = (self.weight.detach(), self.bias.detach()) if frozen else (self.weight, self.bias)
        return torch.baddbmm(bias.view(len(weight), 1, -1), features, weight.transpose(1, 2))


class Critics(nn.Module):
    """K values of an observation and an action, by K networks that have nothing in common but the convolutions.

    What stands before the hidden layers of the torso (nothing for vectors) sees the observation; its features and the
    action are what the hidden layers of every critic see.
    """

    def __init__(self, env: EnvSpec, model: ModelConfig, count: int, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder, width = make_torso(env, model.model_copy(update={"hidden_sizes": ()}), None, generator)
        self._count = count
        self._dtype = None if model.precision == "float32" else getattr(torch, model.precision)
        self._activation = InPlace(model.activation)
        self.layers = nn.ModuleList()
        width += env.action.size
        for size in model.hidden_sizes:
            self.layers.append(EnsembleLinear(count, width, size, HIDDEN_GAIN, generator))
            width = size
        self.head = EnsembleLinear(count, width, 1, VALUE_GAIN, generator)

    def encode(self, obs: Tensor) -> Tensor:
        """Features float32 [N, width] of obs [N, *shape]."""
        return cast(Tensor, self.encoder(obs))

    def forward(self, features: Tensor, action: Tensor, *, frozen: bool = False) -> Tensor:
        """Values float32 [K, N] of `features`, which `encode` gives, and actions [N, size] in units of their bounds.

        frozen: the gradient flows to the action alone.
        """
        both = torch.cat((features, action), 1)
        inputs = both.expand(self._count, *both.shape)
        if self._dtype is None:
            hidden = self._hidden(inputs, frozen)
        else:
            with torch.autocast(both.device.type, self._dtype):
                hidden = self._hidden(inputs, frozen)
        return self.head.forward(hidden.to(torch.float32), frozen=frozen).squeeze(-1)

    def _hidden(self, features: Tensor, frozen: bool) -> Tensor:
        """Calls the layers past torch's hooks, as Torso does."""
        for layer in self.layers:
            features = self._activation.forward(layer.forward(features, frozen=frozen))
        return features


class Policy(nn.Module):
    """Torso and head: `num_outputs` numbers for each observation."""

    def __init__(
        self, env: EnvSpec, model: ModelConfig, num_outputs: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.torso, width = make_torso(env, model, None, generator)
        self.head = make_linear(width, num_outputs, POLICY_GAIN, generator)

    def forward(self, obs: Tensor) -> Tensor:
        """Outputs float32 [N, num_outputs] of obs [N, *shape]."""
        return self.head.forward(self.torso.forward(obs))

    def act(self, obs: Tensor) -> Tensor:
        """As `forward`, in the precision in which actors act."""
        return self.head.forward(self.torso.act(obs))


class Temperature(nn.Module):
    """The weight of the entropy, by its logarithm, float32 []."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(initial).log())


class PolicyAndCritics(nn.Module):
    """A policy and its critics, each with torsos of their own, and a temperature where there is one.

    Equal seeds give equal parameters; torch's global random state is neither read nor changed.
    """

    def __init__(
        self,
        env: EnvSpec,
        model: ModelConfig,
        seed: int,
        *,
        num_outputs: int,
        num_critics: int,
        temperature: float | None = None,
    ) -> None:
        """`num_outputs`: of the policy. Raises ConfigError when a torso does not fit the observations."""
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.policy = Policy(env, model, num_outputs, generator)
        self.critics = Critics(env, model, num_critics, generator)
        if temperature is not None:
            self.temperature = Temperature(temperature)

    def parts(self) -> list[range]:
        """Where policy, critics and temperature lie in the vector of all parameters, in this order."""
        parts, stop = [], 0
        for module in self.children():
            start, stop = stop, stop + sum(parameter.numel() for parameter in module.parameters())
            parts.append(range(start, stop))
        return parts
