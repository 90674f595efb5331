"""Configuration of algorithms, apart from their code so that checking it never loads torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hpcrl.config.base import Config


class AlgorithmConfig(Config):
    """What every algorithm has. A user's algorithm derives its own Config from this."""

    name: str
    """A built-in name (a2c, a3c, apex, ddpg, decoupled_ppo, dqn, impact, impala, ppo, r2d2, sac, td3), or
    package.module:Class of an hpcrl.algorithms.Algorithm."""
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

    @property
    def buffer(self) -> tuple[int, int]:
        """Batches that are kept in turn, and updates that each is trained on for."""
        return 1, 1

    @property
    def sends_gradients(self) -> bool:
        """Actors compute gradients of their trajectories and send those; False: they send the trajectories."""
        return False

    @property
    def uses_replay(self) -> bool:
        """Replay ranks hold a memory that is sampled again and again (section `replay`); False: a queue."""
        return False


class ActorCriticConfig(AlgorithmConfig):
    """What the on-policy algorithms have: a policy and a value, and one loss of both."""

    entropy_coefficient: float = Field(0.01, ge=0)
    """Weight of the entropy bonus: more explores longer."""
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss 0.5 * mean((V - target)^2)."""


class ImpalaConfig(ActorCriticConfig):
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


class PlainGradientConfig(ActorCriticConfig):
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


class SurrogateConfig(ActorCriticConfig):
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

    @model_validator(mode="after")
    def _a_buffer_is_used(self) -> Self:
        if self.buffer_batches > 1 and self.batch_uses == 1:
            raise ValueError(
                f"algorithm.buffer_batches={self.buffer_batches} has no effect with algorithm.batch_uses=1, where no "
                "batch is used again; use algorithm.buffer_batches=1 or more uses"
            )
        return self

    @property
    def buffer(self) -> tuple[int, int]:
        """As AlgorithmConfig.buffer."""
        return self.buffer_batches, self.batch_uses
