"""What a network makes of a flat observation that ends with an action mask."""

from __future__ import annotations

from torch import Tensor

from hpcrl.data.specs import EnvSpec
from hpcrl.functional.distributions import mask_logits


class ObservationParts:
    """The observation proper, and the mask behind it, if the environment has one.

    Attributes:
        mask_size: entries at the end that are the mask; 0: there is none.
    """

    def __init__(self, env: EnvSpec) -> None:
        self.mask_size = env.mask_size
        self._features = env.features.shape
        self._choices = env.action.choices_per_part

    def seen(self, obs: Tensor) -> Tensor:
        """What the torsos get of obs, any leading dimensions: all but the action mask, in its own shape."""
        if not self.mask_size:
            return obs
        return obs[..., : -self.mask_size].reshape(*obs.shape[:-1], *self._features)

    def masked(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Outputs [N, choices] with -infinity for the choices that the mask in obs [N, ...] does not allow."""
        if not self.mask_size:
            return outputs
        return mask_logits(outputs, obs[:, -self.mask_size :] != 0, self._choices)
