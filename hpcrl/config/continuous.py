"""Configuration of the off-policy algorithms for continuous actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from hpcrl.config.off_policy import OffPolicyConfig

if TYPE_CHECKING:
    from hpcrl.config.run import RunConfig


class ContinuousConfig(OffPolicyConfig):
    """What SAC, TD3 and DDPG have: a policy, and critics of the actions it takes."""

    learning_rate: float = Field(3e-4, gt=0)
    """Adam step size of the critics."""
    policy_learning_rate: float | None = Field(None, gt=0)
    """That of the policy; null: learning_rate. Scaling, warm-up and annealing are the same for all."""
    adam_epsilon: float = Field(1e-8, gt=0)
    """Term that keeps Adam's denominator from zero."""
    max_grad_norm: float = Field(1e6, gt=0)
    """The averaged gradient, of policy and critics together, is scaled down to this L2 norm; the papers do not."""
    target_tau: float = Field(0.005, gt=0, le=1)
    """How far the target networks go to the learned ones each time (Polyak)."""
    num_critics: int = Field(2, ge=1)
    """The least value among so many critics is the target (clipped double Q-learning: 2)."""
    random_env_steps: int = Field(1_000, ge=0)
    """Actions are drawn uniformly until the run has so many env_steps, as far as an actor knows."""

    def scale_learning_rate(self, env_steps: int) -> Self:
        """As AlgorithmConfig's, for all learning rates."""
        factor = super().scale_learning_rate(env_steps).learning_rate / self.learning_rate
        rates = {name: getattr(self, name) for name in ("learning_rate", *self.own_learning_rates)}
        update = {name: rate * factor for name, rate in rates.items() if rate is not None}
        return self.model_copy(update=update)

    @property
    def own_learning_rates(self) -> tuple[str, ...]:
        """Keys of learning rates besides learning_rate."""
        return ("policy_learning_rate",)


class SACConfig(ContinuousConfig):
    """SAC (Haarnoja et al. 2018): maximizes entropy along with rewards, with two critics."""

    name: Literal["sac"] = "sac"
    initial_temperature: float = Field(1.0, gt=0)
    """Weight of the entropy, in rewards per nat, at the beginning."""
    auto_temperature: bool = True
    """Raise and lower the temperature so that the entropy becomes target_entropy; false: it stays as it is."""
    target_entropy: float | None = None
    """auto_temperature: in nat, of actions in [-1, 1] whatever the environment's bounds; null: minus their number."""
    temperature_learning_rate: float | None = Field(None, gt=0)
    """auto_temperature: Adam step size of the temperature's logarithm; null: learning_rate."""

    @property
    def own_learning_rates(self) -> tuple[str, ...]:
        """As ContinuousConfig.own_learning_rates."""
        return (*super().own_learning_rates, "temperature_learning_rate")

    @model_validator(mode="after")
    def _a_fixed_temperature_has_no_aim(self) -> Self:
        for key in ("target_entropy", "temperature_learning_rate"):
            value = getattr(self, key)
            if value is not None and not self.auto_temperature:
                raise ValueError(
                    f"algorithm.{key}={value:g} has no effect with algorithm.auto_temperature=false, which keeps "
                    f"algorithm.initial_temperature; leave {key} away"
                )
        return self


class TD3Config(ContinuousConfig):
    """TD3 (Fujimoto et al. 2018): a deterministic policy, whose actions noise is added to.

    Noise is in units of half the distance between an action's bounds.
    """

    name: Literal["td3"] = "td3"
    policy_delay: int = Field(2, ge=1)
    """The policy is stepped in every so many-th update."""
    target_update_updates: int = Field(2, ge=1)
    """The target networks follow the learned ones every so many updates; the paper's: as often as the policy."""
    exploration_noise: float = Field(0.1, ge=0)
    """Standard deviation of what is added to the policy's actions when acting; the sum is cut at the bounds."""
    target_noise: float = Field(0.2, ge=0)
    """Standard deviation of what is added to the target policy's actions."""
    target_noise_clip: float = Field(0.5, gt=0)
    """What that is cut at, from minus to plus this."""


class DDPGConfig(TD3Config):
    """DDPG (Lillicrap et al. 2016): TD3 with one critic, no noise in the target, and no delay."""

    name: Literal["ddpg"] = "ddpg"  # type: ignore[assignment]
    num_critics: int = Field(1, ge=1)
    """The least value among so many critics is the target."""
    policy_delay: int = Field(1, ge=1)
    """The policy is stepped in every so many-th update."""
    target_update_updates: int = Field(1, ge=1)
    """The target networks follow the learned ones every so many updates."""
    target_noise: float = Field(0.0, ge=0)
    """Standard deviation of what is added to the target policy's actions; 0: the paper's."""


def check_continuous(run: RunConfig, algorithm: ContinuousConfig) -> None:
    """Raises ValueError for a model that the algorithm has no use for. Pure."""
    name, model = algorithm.name, run.model
    if model.shared_torso:
        raise ValueError(
            f"model.shared_torso=true is not there with algorithm.name={name}, whose policy and critics each have a "
            "torso of their own; use model.shared_torso=false"
        )
    if model.recurrent != "none":
        raise ValueError(
            f"model.recurrent={model.recurrent} does not fit algorithm.name={name}, which learns from single "
            "transitions; use model.recurrent=none"
        )
    if isinstance(algorithm, SACConfig):
        if model.action_distribution == "gaussian":
            raise ValueError(
                f"model.action_distribution=gaussian does not fit algorithm.name={name}, whose policy is a "
                "tanh_gaussian; use model.action_distribution=auto"
            )
        return
    for key, value, neutral in (
        ("action_distribution", model.action_distribution, "auto"),
        ("initial_log_std", f"{model.initial_log_std:g}", "0"),
    ):
        if value != neutral:
            raise ValueError(
                f"model.{key}={value} has no effect with algorithm.name={name}, whose policy is deterministic; use "
                f"model.{key}={neutral}, and algorithm.exploration_noise for how it explores"
            )
