"""Configuration of models and algorithms, apart from their code so that checking it never loads torch."""

from __future__ import annotations

import difflib
from typing import Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from hpcrl.config.base import Config

BUILTIN_TORSOS = ("mlp", "nature_cnn", "impala_resnet")
"""Names that need no import; anything else is package.module:Class."""
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


class AlgorithmConfig(Config):
    """What every algorithm has. A user's algorithm derives its own Config from this."""

    name: str
    """A built-in name (a2c, a3c, decoupled_ppo, impact, impala, ppo), or package.module:Class of an
    hpcrl.algorithms.Algorithm."""
    unroll_length: int = Field(32, ge=1)
    """T: env_steps per trajectory and environment slot. Longer bootstraps less and lags more. 5 to 128."""
    batch_trajectories: int | None = Field(None, ge=1)
    """Trajectories per update over all learners; None: one from every actor, so that an update holds
    unroll_length x env.num_envs env_steps however many actors there are (pipeline scheme only)."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount factor per env_step."""
    learning_rate: float = Field(3e-4, gt=0)
    """Adam step size. Lower it when approx_kl or rho_clip_fraction grow."""
    anneal_learning_rate: bool = False
    """Lower the learning rate linearly to zero over budget.env_steps."""
    adam_epsilon: float = Field(1e-5, gt=0)
    """Term that keeps Adam's denominator from zero."""
    max_grad_norm: float = Field(0.5, gt=0)
    """The averaged gradient is scaled down to this L2 norm."""
    entropy_coefficient: float = Field(0.01, ge=0)
    """Weight of the entropy bonus: more explores longer."""
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss 0.5 * mean((V - target)^2)."""
    reward_clip: float | None = Field(None, gt=0)
    """Clip training rewards to [-reward_clip, reward_clip]; logged returns stay raw."""
    reward_scale: float = Field(1.0, gt=0)
    """Multiply training rewards, after clipping, by this; logged returns stay raw. Values of a few units are learned
    soonest: use less than 1 where rewards are large or episodes long."""
    normalize_returns: bool = False
    """Divide training rewards by the standard deviation of the discounted returns of all valid env_steps trained on so
    far; logged returns stay raw. Instead of reward_scale, where the size of rewards is not known beforehand."""
    normalized_reward_clip: float = Field(10.0, gt=0)
    """normalize_returns: what a reward is clipped to after the division, from minus to plus this."""
    max_nonfinite_updates: int = Field(3, ge=1)
    """Stop with exit code 4 after this many updates in a row whose gradient is not finite."""

    @model_validator(mode="after")
    def _one_scale_of_rewards(self) -> AlgorithmConfig:
        for key, value, neutral in (
            ("reward_scale", self.reward_scale, 1.0),
            ("reward_clip", self.reward_clip, None),
        ):
            if self.normalize_returns and value != neutral:
                raise ValueError(
                    f"algorithm.{key}={value:g} contradicts algorithm.normalize_returns=true, which finds the scale of "
                    f"rewards itself and clips to algorithm.normalized_reward_clip; leave {key} away"
                )
        return self

    @property
    def buffer(self) -> tuple[int, int]:
        """Batches that are kept in turn, and updates that each is trained on for."""
        return 1, 1

    @property
    def sends_gradients(self) -> bool:
        """Actors compute gradients of their trajectories and send those; False: they send the trajectories."""
        return False


class ImpalaConfig(AlgorithmConfig):
    """IMPALA: off-policy actor-critic corrected by V-trace (Espeholt et al. 2018)."""

    name: Literal["impala"] = "impala"
    rho_bar: float = Field(1.0, gt=0)
    """Cap of the importance weight in the temporal difference: decides which policy the value converges to."""
    c_bar: float = Field(1.0, gt=0)
    """Cap of the trace coefficient: decides how fast, not where to."""
    pg_rho_bar: float = Field(1.0, gt=0)
    """Cap of the importance weight in the policy gradient."""
    lambda_: float = Field(1.0, ge=0, le=1)
    """Mixing of the trace: less is lower variance and more bias."""


class PlainGradientConfig(AlgorithmConfig):
    """What A2C and A3C have: plain policy gradients, with GAE (Schulman et al. 2016)."""

    gae_lambda: float = Field(1.0, ge=0, le=1)
    """Mixing parameter of generalized advantage estimation; 1 is the n-step return of Mnih et al. 2016."""


class A2CConfig(PlainGradientConfig):
    """A2C: one plain policy gradient per batch (Mnih et al. 2016, in step)."""

    name: Literal["a2c"] = "a2c"


class A3CConfig(PlainGradientConfig):
    """A3C (Mnih et al. 2016): actors send gradients, each of which one learner applies as soon as it comes.

    Each is an update of its own. lag.max_lag bounds how many others may come between: with less than ranks.actors - 1
    some actors always wait.
    """

    name: Literal["a3c"] = "a3c"

    @property
    def sends_gradients(self) -> bool:
        """As AlgorithmConfig.sends_gradients."""
        return True


class SurrogateConfig(AlgorithmConfig):
    """What PPO and its kin have: a clipped surrogate (Schulman et al. 2017) and GAE (Schulman et al. 2016)."""

    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Mixing parameter of generalized advantage estimation."""
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    """Half width of the trust interval of the importance ratio."""
    value_clip: float | None = Field(None, gt=0)
    """Clip of the value's change from its behavior-time value; None: plain squared error."""
    dual_clip: float | None = Field(None, gt=1)
    """c > 1: lower bound c * A of the objective for negative advantages (Ye et al. 2020, eq. 5); None: off."""
    epochs: int = Field(4, ge=1)
    """Passes over each batch."""
    num_minibatches: int = Field(4, ge=1)
    """Gradient steps per epoch; the partition is drawn over the global batch, so it is the same for any ranks."""
    normalize_advantages: bool = True
    """Subtract mean and divide by standard deviation, both over the global batch of all ranks."""
    target_kl: float | None = Field(None, gt=0)
    """Leave the epochs early when the KL estimate, averaged over all ranks, passes 1.5 times this."""

    @model_validator(mode="after")
    def _dual_clip_leaves_the_trust_region(self) -> SurrogateConfig:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_epsilon:
            raise ValueError(
                f"algorithm.dual_clip={self.dual_clip} lies inside the trust interval; "
                f"use more than 1 + clip_epsilon = {1 + self.clip_epsilon} (3 is usual)"
            )
        return self


class PPOConfig(SurrogateConfig):
    """PPO: the trust interval lies around the policy that acted."""

    name: Literal["ppo"] = "ppo"


class DecoupledPPOConfig(SurrogateConfig):
    """Decoupled PPO (Hilton et al. 2022): the trust interval lies around the policy before the update.

    For data that are several updates old (lag.max_lag), of which PPO would clip most, or pull the policy back.
    """

    name: Literal["decoupled_ppo"] = "decoupled_ppo"
    behavior_weight_cap: float | None = Field(5.0, gt=0)
    """Cap of the weight of an env_step, the probability of its action before the update over that when it acted; null:
    none."""


class ImpactConfig(SurrogateConfig):
    """IMPACT (Luo et al. 2020), also known as APPO: PPO around a target network, on batches that are used again.

    For data that are several updates old (lag.max_lag).
    """

    name: Literal["impact"] = "impact"
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Mixing parameter of the advantages; their trace is cut as V-trace does."""
    epochs: int = Field(1, ge=1)
    """Passes over a batch in each of its updates."""
    buffer_batches: int = Field(1, ge=1)
    """N: batches in the circular buffer, each of which is trained on in turn."""
    batch_uses: int = Field(2, ge=1)
    """K: updates that each batch is trained on for. The last one is (K - 1) * N updates later than the first: so much
    of lag.max_lag the reuse needs. budget.env_steps counts each env_step once."""
    target_update_updates: int = Field(2, ge=1)
    """The target network becomes the learned one every so many updates. N * K is usual."""
    target_ratio_cap: float = Field(2.0, ge=1)
    """rho: cap of the probability of an action when it acted over that under the target network."""
    rho_bar: float = Field(1.0, gt=0)
    """Cap of the target network's importance weight in the temporal difference, as in IMPALA."""
    c_bar: float = Field(1.0, gt=0)
    """Cap of the trace coefficient, as in IMPALA."""

    @property
    def buffer(self) -> tuple[int, int]:
        """As AlgorithmConfig.buffer."""
        return self.buffer_batches, self.batch_uses


BUILTIN_ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "a2c": A2CConfig,
    "a3c": A3CConfig,
    "decoupled_ppo": DecoupledPPOConfig,
    "impact": ImpactConfig,
    "impala": ImpalaConfig,
    "ppo": PPOConfig,
}
"""Configuration of each built-in name."""
