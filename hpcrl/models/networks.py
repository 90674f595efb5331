"""The actor-critic network: torso, policy head, value head."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from hpcrl.config import ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.functional.distributions import mask_logits
from hpcrl.models.action_distributions import action_distribution
from hpcrl.models.torsos import make_linear, make_torso

POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class ActorCritic(nn.Module):
    """Policy and value of an observation.

    Orthogonal weights (gain sqrt 2 in the torso, 0.01 for the policy head, 1 for the value head); biases 0.

    Attributes:
        distribution: what the policy's outputs mean.
    """

    def __init__(self, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        """Equal seeds give equal parameters; torch's global random state is neither read nor changed.

        Raises ConfigError when the torso does not fit the observations.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.distribution = action_distribution(env, model)
        self._features, self._mask_size = env.features.shape, env.mask_size
        self._choices = env.action.choices_per_part
        self.torso, width = make_torso(env, model, generator)
        self.value_torso = None if model.shared_torso else make_torso(env, model, generator)[0]
        self.policy_head = make_linear(width, self.distribution.num_outputs, POLICY_GAIN, generator)
        self.value_head = make_linear(width, 1, VALUE_GAIN, generator)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Policy outputs and values.

        Args:
            obs: [N, *shape] in the environment's dtype; N may be 0.

        Returns:
            float32 [N, distribution.num_outputs], and float32 [N], values.
        """
        seen = self.seen(obs)
        features = self.torso(seen)
        value_features = features if self.value_torso is None else self.value_torso(seen)
        outputs = self.masked(self.policy_head(features), obs)
        return outputs, self.value_head(value_features).squeeze(-1)

    def policy(self, obs: Tensor) -> Tensor:
        """Only the policy outputs of `forward`, all that acting needs.

        Calls the layers directly, past torch's hooks, whose bookkeeping costs as much as a small layer.
        """
        features = self.seen(obs)
        for layer in self.torso:
            features = layer.forward(features)
        return self.masked(self.policy_head.forward(features), obs)

    def value(self, obs: Tensor) -> Tensor:
        """Only the values of `forward`."""
        torso = self.torso if self.value_torso is None else self.value_torso
        return cast(Tensor, self.value_head(torso(self.seen(obs))).squeeze(-1))

    def seen(self, obs: Tensor) -> Tensor:
        """What the torsos get of obs [N, ...]: all but the action mask, in its own shape."""
        if not self._mask_size:
            return obs
        return obs[:, : -self._mask_size].reshape(-1, *self._features)

    def masked(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Logits [N, num_outputs] with -infinity for the choices that the mask in obs [N, ...] does not allow."""
        if not self._mask_size:
            return outputs
        return mask_logits(outputs, obs[:, -self._mask_size :] != 0, self._choices)
