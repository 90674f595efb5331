"""Configuration of networks."""

from __future__ import annotations

import difflib
from typing import Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from hpcrl.config.base import Config

BUILTIN_TORSOS = ("mlp", "nature_cnn", "impala_resnet")
"""Names that need no import; anything else is package.module:Class."""
IMAGE_TORSOS = ("nature_cnn", "impala_resnet")
"""Those with convolutions."""
SMALLEST_IMAGE = 36
"""Height and width below which the convolutions of nature_cnn have no output left."""


class ModelConfig(Config):
    """The policy and value network."""

    torso: str = "mlp"
    """mlp for vectors; nature_cnn (Mnih et al. 2015) or impala_resnet (Espeholt et al. 2018, the larger one) for uint8
    images [C, H, W], which they scale by 1/255; or package.module:Class of a torch.nn.Module of your own: made by
    Class(observation), an hpcrl.data.specs.ArraySpec, it turns obs [N, *shape] into float32 features [N, width]."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers, which follow the torso (papers: 512 after nature_cnn, 256 after impala_resnet)."""
    activation: Literal["tanh", "relu"] = "tanh"
    """tanh is the usual choice for small vectors, relu for images. Inside impala_resnet it is always relu."""
    shared_torso: bool = True
    """One torso for policy and value: half the work. Separate torsos often learn control tasks more steadily."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the torso's matrix products and convolutions, in updates and in acting. Parameters, gradients, optimizer,
    heads, log-probabilities, values and losses stay float32. bfloat16 pays for convolutions and wide layers where the
    hardware has it (CPU: AMX); small layers get slower. float16, with a loss scale, is for GPUs without bfloat16; who
    acts on a CPU then acts in float32."""
    channels_last: bool = False
    """nature_cnn and impala_resnet: images as [N, H, W, C] in memory, which convolutions prefer on many machines."""
    action_distribution: Literal["auto", "gaussian", "tanh_gaussian"] = "auto"
    """Of continuous actions. gaussian (auto): normal, clipped to the bounds by the environment. tanh_gaussian: a normal
    number through tanh, scaled to the bounds, which must be finite; nothing is clipped. Discrete actions: auto."""
    recurrent: Literal["none", "gru", "lstm"] = "none"
    """Cell between the hidden layers and the heads: the policy remembers what it saw earlier in an episode. Every torso
    has one of its own. Its state travels with each trajectory, and PPO's minibatches are whole columns of the batch."""
    recurrent_size: PositiveInt = 64
    """Width of the recurrent cell."""
    initial_log_std: float = 0.0
    """Start of the state-independent log standard deviation of Gaussian actions (continuous actions only)."""
    normalize_observations: bool = False
    """Subtract from observations (vectors of floats) their mean over all valid env_steps trained on so far, and divide
    by their standard deviation, each feature for itself. Both change with each update; they travel with the parameters.
    """
    observation_clip: float = Field(10.0, gt=0)
    """normalize_observations: standard deviations from the mean at which an observation is cut."""
    observation_epsilon: float = Field(1e-8, gt=0)
    """normalize_observations: added to the variance, so that a feature that never changes does not divide by zero."""

    @model_validator(mode="after")
    def _images_have_a_scale(self) -> ModelConfig:
        if self.normalize_observations and self.torso in ("nature_cnn", "impala_resnet"):
            raise ValueError(
                f"model.normalize_observations=true is for vectors of floats; model.torso={self.torso} scales its "
                "images by 1/255 already: leave normalize_observations false"
            )
        return self

    @model_validator(mode="after")
    def _images_have_a_layout(self) -> Self:
        if self.channels_last and self.torso not in IMAGE_TORSOS:
            raise ValueError(
                f"model.channels_last=true has no effect with model.torso={self.torso}; it is for "
                f"{' and '.join(IMAGE_TORSOS)}"
            )
        return self

    @field_validator("torso")
    @classmethod
    def _known_torso(cls, value: str) -> str:
        module, _, name = value.partition(":")
        if value in BUILTIN_TORSOS or (module and name):
            return value
        near = difflib.get_close_matches(value, BUILTIN_TORSOS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(
            f"model.torso={value!r} is not known{hint} Use one of {', '.join(BUILTIN_TORSOS)}, or package.module:Class"
        )
