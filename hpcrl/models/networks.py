"""The actor-critic network: torso, policy head, value head."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from hpcrl.config import ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.models.action_distributions import action_distribution
from hpcrl.models.observations import ObservationParts
from hpcrl.models.recurrent import Memory, make_cell, remembered
from hpcrl.models.torsos import make_linear, make_normalizer, make_torso

POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class ActorCritic(nn.Module):
    """Policy and value of an observation.

    Orthogonal weights (gain sqrt 2 in the torso, 0.01 for the policy head, 1 for the value head); biases 0.

    Attributes:
        distribution: what the policy's outputs mean.
        parts: of an observation.
        normalizer: first layer of every torso; None unless observations are normalized.
        state_size: numbers that a recurrent network remembers per environment; 0 for one that is not recurrent.
    """

    def __init__(self, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        """Equal seeds give equal parameters; torch's global random state is neither read nor changed.

        Raises ConfigError when the torso does not fit the observations.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.distribution = action_distribution(env, model)
        self.parts = ObservationParts(env)
        self.normalizer = make_normalizer(env, model)
        self.torso, width = make_torso(env, model, self.normalizer, generator)
        self.value_torso = (
            None if model.shared_torso else make_torso(env, model, self.normalizer, generator)[0]
        )
        self.cell = make_cell(width, model, generator)
        self.value_cell = None if model.shared_torso else make_cell(width, model, generator)
        sizes = [cell.state_size if cell is not None else 0 for cell in (self.cell, self.value_cell)]
        self.state_size = sum(sizes)
        self._policy_part, self._value_part = range(sizes[0]), range(sizes[0], self.state_size)
        width = width if self.cell is None else self.cell.size
        self.policy_head = make_linear(width, self.distribution.num_outputs, POLICY_GAIN, generator)
        self.value_head = make_linear(width, 1, VALUE_GAIN, generator)

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
        outputs = self.parts.masked(self.policy_head(features), obs)
        return outputs, self.value_head(value_features).squeeze(-1)

    def policy(self, obs: Tensor) -> Tensor:
        """Only the policy outputs of `forward`, all that acting needs.

        Calls the head directly, past torch's hooks, as the torso does with its layers.
        """
        if not self.parts.mask_size:
            return self.policy_head.forward(self.torso.act(obs))
        return self.parts.masked(self.policy_head.forward(self.torso.act(self.parts.seen(obs))), obs)

    def step(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`policy` of a recurrent network, for one env_step, and the state after it, [N, state_size] like that before.

        What a torso of the value remembers goes on too, so that a learner can start from it.
        """
        if self.cell is None:
            raise RuntimeError("this network is not recurrent; use `policy`")
        of_policy, of_value = (
            state[:, part.start : part.stop] for part in (self._policy_part, self._value_part)
        )
        seen = self.parts.seen(obs)
        after = self.cell.step(self.torso.act(seen), of_policy)
        policy = self.parts.masked(self.policy_head.forward(after[:, : self.cell.size]), obs)
        if self.value_torso is not None and self.value_cell is not None:
            value_after = self.value_cell.step(self.value_torso.act(seen), of_value)
            after = torch.cat((after, value_after), 1)
        return policy, after

    def value(self, obs: Tensor, memory: Memory | None = None) -> Tensor:
        """Only the values of `forward`."""
        return cast(Tensor, self.value_head(self._value_features(obs, memory)).squeeze(-1))

    def _policy_features(self, obs: Tensor, memory: Memory | None) -> Tensor:
        return remembered(self.torso(self.parts.seen(obs)), self.cell, memory, self._policy_part)

    def _value_features(self, obs: Tensor, memory: Memory | None) -> Tensor:
        if self.value_torso is None:
            return self._policy_features(obs, memory)
        return remembered(self.value_torso(self.parts.seen(obs)), self.value_cell, memory, self._value_part)
