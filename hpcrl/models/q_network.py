"""The action-value network: torso, cell, and one or two heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hpcrl.config import ConfigError, ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.models.observations import ObservationParts
from hpcrl.models.recurrent import Memory, make_cell, remembered
from hpcrl.models.torsos import make_linear, make_torso

HEAD_GAIN = 0.1
"""Of the heads' orthogonal weights: at first all values are near 0, so that none is preferred for long."""


class QNetwork(nn.Module):
    """Q(s, a) of all actions of an observation, -infinity for those that its mask does not allow.

    `dueling` (Wang et al. 2016, eq. 9): V + A - mean of A over all actions, with two heads of one linear layer each.

    Attributes:
        parts: of an observation.
        state_size: numbers that a recurrent network remembers per environment; 0 for one that is not recurrent.
    """

    def __init__(self, env: EnvSpec, model: ModelConfig, seed: int, *, dueling: bool) -> None:
        """Equal seeds give equal parameters; torch's global random state is neither read nor changed.

        Raises ConfigError where the actions are not discrete, or the torso does not fit the observations.
        """
        super().__init__()
        if env.action.kind != "discrete" or model.action_distribution != "auto":
            raise ConfigError(
                f"action values are for discrete actions, one of a few choices; {env.id} has {env.action.kind} ones, "
                f"with model.action_distribution={model.action_distribution}: use another algorithm.name (ppo takes "
                "all kinds), or model.action_distribution=auto"
            )
        generator = torch.Generator().manual_seed(seed)
        self.parts = ObservationParts(env)
        self.torso, width = make_torso(env, model, None, generator)
        self.cell = make_cell(width, model, generator)
        self.state_size = 0 if self.cell is None else self.cell.state_size
        width = width if self.cell is None else self.cell.size
        self.action_head = make_linear(width, env.action.size, HEAD_GAIN, generator)
        self.value_head = make_linear(width, 1, HEAD_GAIN, generator) if dueling else None

    def forward(self, obs: Tensor, memory: Memory | None = None) -> Tensor:
        """Values.

        Args:
            obs: [N, *shape] in the environment's dtype; N may be 0.
            memory: for a recurrent network: obs are those of its sequences, time-major.

        Returns:
            float32 [N, actions].
        """
        features = self.torso(self.parts.seen(obs))
        return self._values(remembered(features, self.cell, memory, range(self.state_size)), obs)

    def step(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`forward` for one env_step, and the state [N, state_size] after it, of a network that has one."""
        features = self.torso.act(self.parts.seen(obs))
        if self.cell is None or state is None:
            return self._values(features, obs), None
        state = self.cell.step(features, state)
        return self._values(state[:, : self.cell.size], obs), state

    def after(self, obs: Tensor, memory: Memory) -> Tensor:
        """The state [N, state_size] of a recurrent network after N sequences of obs [L * N, *shape], time-major."""
        if self.cell is None:
            raise RuntimeError("this network is not recurrent")
        return self.cell.after(self.torso(self.parts.seen(obs)), memory)

    def _values(self, features: Tensor, obs: Tensor) -> Tensor:
        values = self.action_head.forward(features)
        if self.value_head is not None:
            values = self.value_head.forward(features) + values - values.mean(-1, keepdim=True)
        return self.parts.masked(values, obs)
