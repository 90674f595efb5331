"""Configuration of the algorithms that learn from a replay memory."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hpcrl.config.algorithms import AlgorithmConfig


class OffPolicyConfig(AlgorithmConfig):
    """What every algorithm has that samples from a replay memory (section `replay`)."""

    unroll_length: int = Field(8, ge=1)
    """env_steps per trajectory and environment slot: what actors send at a time."""
    batch_size: int = Field(256, ge=1)
    """Transitions, or sequences, per update over all learners."""
    max_grad_norm: float = Field(10.0, gt=0)
    """The averaged gradient is scaled down to this L2 norm."""
    target_update_updates: int = Field(1, ge=1)
    """The target network follows the learned one every so many updates."""
    target_tau: float = Field(1.0, gt=0, le=1)
    """How far it goes then: 1 copies the parameters; a small share (0.005), after each update, averages them (Polyak).
    """

    @property
    def uses_replay(self) -> bool:
        """As AlgorithmConfig.uses_replay."""
        return True

    @property
    def steps_ahead(self) -> int:
        """n: env_steps whose rewards count before the value of the observation after them does."""
        return 1

    @property
    def sequence_steps(self) -> int:
        """env_steps of a sampled sequence, a multiple of unroll_length; 0: single transitions are sampled."""
        return 0

    @property
    def cross_episodes(self) -> bool:
        """A sampled sequence goes on after the end of an episode; False: what comes after is not valid."""
        return False

    @property
    def priority_mix(self) -> float:
        """eta of a sequence's first priority, eta * max + (1 - eta) * mean of the |TD errors| of its env_steps."""
        return 0.9

    @property
    def gives_priorities(self) -> bool:
        """Actors compute the first priority of what they send; False: new entries have the largest one there is."""
        return False


class ActionValueConfig(OffPolicyConfig):
    """What the algorithms have that learn the value of each of a few discrete actions."""

    double: bool = True
    """The learned network chooses the action whose value the target network gives (van Hasselt et al. 2016); false: the
    target network's maximum."""
    dueling: bool = True
    """Two heads, of the state's value and of each action's advantage (Wang et al. 2016); false: one."""
    n_step: int = Field(1, ge=1)
    """env_steps whose rewards count before the value of the observation after them does."""
    target_update_updates: int = Field(200, ge=1)
    """As OffPolicyConfig.target_update_updates."""

    @property
    def steps_ahead(self) -> int:
        """As OffPolicyConfig.steps_ahead."""
        return self.n_step


class DQNConfig(ActionValueConfig):
    """DQN (Mnih et al. 2015), with its double, dueling and n-step forms."""

    name: Literal["dqn"] = "dqn"
    epsilon_end: float = Field(0.05, ge=0, le=1)
    """Probability of a random action in the end; it is 1 at first."""
    epsilon_env_steps: int = Field(10_000, ge=1)
    """env_steps of the whole run over which that falls linearly. A tenth of the budget is usual."""


class LadderConfig(ActionValueConfig):
    """What Ape-X and R2D2 have: every environment explores in its own way, and actors give the first priorities."""

    n_step: int = Field(3, ge=1)
    """As ActionValueConfig.n_step."""
    epsilon_base: float = Field(0.4, ge=0, le=1)
    """Probability of a random action in the first environment."""
    epsilon_exponent: float = Field(7.0, ge=0)
    """In environment i of N it is epsilon_base^(1 + epsilon_exponent * i / (N - 1)); the papers have 7."""
    max_grad_norm: float = Field(40.0, gt=0)
    """The averaged gradient is scaled down to this L2 norm."""

    @property
    def gives_priorities(self) -> bool:
        """As OffPolicyConfig.gives_priorities."""
        return True

    @property
    def rescaling(self) -> float | None:
        """epsilon of the function that values are learned through; None: they are learned as they are."""
        return None


class ApexConfig(LadderConfig):
    """Ape-X DQN (Horgan et al. 2018): DQN from the prioritized experience of many actors."""

    name: Literal["apex"] = "apex"


class R2D2Config(LadderConfig):
    """R2D2 (Kapturowski et al. 2019): a recurrent network, trained on sequences from the replay memory.

    Sequences start every unroll_length env_steps, so they overlap by burn_in_steps + trained_steps - unroll_length.
    """

    name: Literal["r2d2"] = "r2d2"
    unroll_length: int = Field(40, ge=1)
    """env_steps per trajectory and environment slot: what actors send at a time, and where sequences may start."""
    batch_size: int = Field(64, ge=1)
    """Sequences per update over all learners."""
    gamma: float = Field(0.997, ge=0, le=1)
    """Discount factor per env_step."""
    n_step: int = Field(5, ge=1)
    """As ActionValueConfig.n_step; fewer near the end of a sequence."""
    burn_in_steps: int = Field(40, ge=0)
    """env_steps at the beginning of a sequence that only bring the recurrent state up to date, for both networks."""
    trained_steps: int = Field(80, ge=1)
    """env_steps of a sequence that are trained on, after those."""
    priority_eta: float = Field(0.9, ge=0, le=1)
    """A sequence's priority is this share of the largest |TD error| in it, and the rest of the mean."""
    rescale_epsilon: float | None = Field(1e-3, ge=0)
    """Values are learned through h(x) = sign(x)(sqrt(|x| + 1) - 1) + rescale_epsilon * x, which makes large returns
    small; null: as they are."""

    @property
    def sequence_steps(self) -> int:
        """As OffPolicyConfig.sequence_steps."""
        return self.burn_in_steps + self.trained_steps

    @property
    def cross_episodes(self) -> bool:
        """As OffPolicyConfig.cross_episodes: else the first env_steps of an episode would never be trained on."""
        return True

    @property
    def priority_mix(self) -> float:
        """As OffPolicyConfig.priority_mix."""
        return self.priority_eta

    @property
    def rescaling(self) -> float | None:
        """As LadderConfig.rescaling."""
        return self.rescale_epsilon

    @model_validator(mode="after")
    def _sequences_are_made_of_trajectories(self) -> Self:
        if self.sequence_steps % self.unroll_length:
            raise ValueError(
                f"algorithm.burn_in_steps={self.burn_in_steps} + algorithm.trained_steps={self.trained_steps} = "
                f"{self.sequence_steps} is not a multiple of algorithm.unroll_length={self.unroll_length}, the "
                "trajectories of which sequences are made; change one of them"
            )
        if self.burn_in_steps > self.sequence_steps - self.unroll_length:
            raise ValueError(
                f"algorithm.trained_steps={self.trained_steps} is less than algorithm.unroll_length="
                f"{self.unroll_length}: some env_steps would only ever be burned in; use at least as many"
            )
        return self
