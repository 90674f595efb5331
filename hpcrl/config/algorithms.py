"""Configuration of models and algorithms, apart from their code so that checking it never loads torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from hpcrl.config.base import Config


class ModelConfig(Config):
    """The policy and value network."""

    torso: Literal["mlp", "nature_cnn"] = "mlp"
    """mlp for vectors; nature_cnn (Mnih et al. 2015) for uint8 images [C, H, W], which it scales by 1/255."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers; for nature_cnn the layers after the convolutions (the paper: 512)."""
    activation: Literal["tanh", "relu"] = "tanh"
    """tanh is the usual choice for small vectors, relu for images."""
    shared_torso: bool = True
    """One torso for policy and value: half the work. Separate torsos often learn control tasks more steadily."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the torso's matrix products and convolutions, in updates and in acting. Parameters, gradients, optimizer,
    heads, log-probabilities, values and losses stay float32. bfloat16 pays for convolutions and wide layers where the
    hardware has it (CPU: AMX); small layers get slower. float16, with a loss scale, is for GPUs without bfloat16; who
    acts on a CPU then acts in float32."""
    channels_last: bool = False
    """nature_cnn: images as [N, H, W, C] in memory, which convolutions prefer on many machines, in bfloat16 most."""
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
        if self.normalize_observations and self.torso == "nature_cnn":
            raise ValueError(
                "model.normalize_observations=true is for vectors of floats; model.torso=nature_cnn scales its images "
                "by 1/255 already: leave normalize_observations false"
            )
        return self

    @model_validator(mode="after")
    def _images_have_a_layout(self) -> Self:
        if self.channels_last and self.torso == "mlp":
            raise ValueError(
                "model.channels_last=true has no effect with model.torso=mlp, which has no convolutions"
            )
        return self


class AlgorithmConfig(Config):
    """What every algorithm has. A user's algorithm derives its own Config from this."""

    name: str
    """A built-in name (a2c, decoupled_ppo, impala, ppo) or package.module:Class of an hpcrl.algorithms.Algorithm."""
    unroll_length: int = Field(32, ge=1)
    """T: env_steps per trajectory and environment slot. Longer bootstraps less and lags more. 5 to 128."""
    batch_trajectories: int | None = Field(None, ge=1)
    """Trajectories per update over all learners; None: one from every actor, so that an update holds
    unroll_length x env.num_envs env_steps however many actors there are (pipeline scheme only)."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount factor per env_step."""
    learning_rate: float = Field(3e-4, gt=0)
    """Adam step size. Lower it when approx_kl or rho_clip_fraction grow."""
    learning_rate_scaling: Literal["none", "sqrt", "linear"] = "none"
    """Multiply the learning rate by r = env_steps per gradient step, over all learners, / reference_batch (linear:
    Goyal et al. 2017), or by its root (sqrt, which suits Adam: Malladi et al. 2022). r grows with env.num_envs,
    batch_trajectories and unroll_length."""
    reference_batch: int | None = Field(None, ge=1)
    """env_steps per gradient step for which learning_rate was chosen; needed by learning_rate_scaling."""
    warmup_updates: int = Field(0, ge=0)
    """Raise the learning rate linearly over so many updates from the first one on; with annealing it is a factor."""
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
    rows_per_pass: int | None = Field(None, ge=1)
    """Most observations that go through the network at once; the gradients of the parts add up, so results are the same
    up to rounding. Bounds the memory of an update. Where whole trajectories are needed (a2c, impala) it is at least one
    environment's. null: as many as take 256 MiB as float32."""
    max_nonfinite_updates: int = Field(3, ge=1)
    """Stop with exit code 4 after this many updates in a row whose gradient is not finite."""

    @property
    def gradient_steps_per_pass(self) -> int:
        """Gradient steps into which one pass over the env_steps of an update is divided."""
        return 1

    def scale_learning_rate(self, env_steps: int) -> AlgorithmConfig:
        """This configuration with the learning rate for `env_steps` per gradient step, by learning_rate_scaling."""
        if self.learning_rate_scaling == "none" or self.reference_batch is None:
            return self
        ratio = env_steps / self.reference_batch
        factor = ratio if self.learning_rate_scaling == "linear" else ratio**0.5
        return self.model_copy(update={"learning_rate": self.learning_rate * factor})

    def describe_learning_rate(self, env_steps: int) -> str:
        """How large the steps are with `env_steps` per gradient step, and why, as one line for the log."""
        rate = self.scale_learning_rate(env_steps).learning_rate
        text = f"learning rate {rate:.4g}"
        if self.learning_rate_scaling != "none":
            root = "sqrt" if self.learning_rate_scaling == "sqrt" else ""
            text += f" = {self.learning_rate:.4g} x {root}({env_steps:,} / {self.reference_batch:,})"
        text += f", {env_steps:,} env_steps per gradient step"
        if self.warmup_updates:
            text += f", warm-up over {self.warmup_updates:,} updates"
        return text + (", annealed" if self.anneal_learning_rate else "")

    @model_validator(mode="after")
    def _scaling_has_a_reference(self) -> Self:
        if (self.learning_rate_scaling == "none") == (self.reference_batch is None):
            return self
        if self.reference_batch is None:
            raise ValueError(
                f"algorithm.learning_rate_scaling={self.learning_rate_scaling} needs algorithm.reference_batch, the "
                "env_steps per gradient step for which algorithm.learning_rate was chosen"
            )
        raise ValueError(
            f"algorithm.reference_batch={self.reference_batch} has no effect without scaling; set "
            "algorithm.learning_rate_scaling=sqrt or linear"
        )

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


class A2CConfig(AlgorithmConfig):
    """A2C: one plain policy gradient per batch (Mnih et al. 2016, in step)."""

    name: Literal["a2c"] = "a2c"
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """Mixing parameter of generalized advantage estimation; 1 is the paper's n-step return."""


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

    @property
    def gradient_steps_per_pass(self) -> int:
        """As AlgorithmConfig's."""
        return self.num_minibatches

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


BUILTIN_ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "a2c": A2CConfig,
    "decoupled_ppo": DecoupledPPOConfig,
    "impala": ImpalaConfig,
    "ppo": PPOConfig,
}
"""Configuration of each built-in name."""
