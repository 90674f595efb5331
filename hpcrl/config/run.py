"""RunConfig: one run, complete and checked. Everything a command needs to know before MPI starts."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from hpcrl.config.algorithms import AlgorithmConfig
from hpcrl.config.base import Config, ConfigError
from hpcrl.config.builtin import BUILTIN_ALGORITHMS
from hpcrl.config.consistency import check_consistency
from hpcrl.config.model import ModelConfig
from hpcrl.config.off_policy import OffPolicyConfig
from hpcrl.config.replay import ReplayConfig
from hpcrl.config.sections import (
    BudgetConfig,
    CheckpointConfig,
    CommConfig,
    EnvConfig,
    EvaluationConfig,
    FaultsConfig,
    LagConfig,
    LogConfig,
    ProfileConfig,
    RanksConfig,
    ReductionConfig,
    StorageConfig,
)


class RunConfig(Config):
    """One training run."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Begins the name of the run directory."""
    scheme: Literal["synchronous", "pipeline"] = "pipeline"
    """synchronous: every rank acts and learns in step. pipeline: actor -> replay -> learner."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Root of every random stream of the run."""
    deterministic: bool = False
    """Form batches in grant order with exactly the granted parameter version: bit-equal runs from equal seeds.
    Always so in the synchronous scheme; in the pipeline it needs lag.max_lag of 0 or 1 (more by what reuse adds). With
    a replay memory actors and learners take turns."""
    env: EnvConfig
    model: ModelConfig = ModelConfig()
    algorithm: SerializeAsAny[AlgorithmConfig]
    ranks: RanksConfig = RanksConfig()
    lag: LagConfig = LagConfig()
    replay: ReplayConfig = ReplayConfig()
    budget: BudgetConfig = BudgetConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    storage: StorageConfig = StorageConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    comm: CommConfig = CommConfig()
    reduction: ReductionConfig = ReductionConfig()
    faults: FaultsConfig = FaultsConfig()
    log: LogConfig = LogConfig()
    profile: ProfileConfig = ProfileConfig()

    @field_validator("algorithm", mode="before")
    @classmethod
    def _choose_algorithm(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return algorithm_config_class(value.get("name", "")).parse(value, "algorithm")

    @property
    def world_size(self) -> int:
        """Ranks this run asks for."""
        if self.scheme == "synchronous":
            return self.ranks.workers
        return self.ranks.actors + self.ranks.replay + self.ranks.learners

    @property
    def num_acting_ranks(self) -> int:
        """Ranks that step environments."""
        return self.ranks.workers if self.scheme == "synchronous" else self.ranks.actors

    @property
    def batch_trajectories(self) -> int:
        """K: trajectories per update over all learners; where actors send gradients, one of those."""
        return (
            1
            if self.algorithm.sends_gradients
            else self.algorithm.batch_trajectories or self.num_acting_ranks
        )

    @property
    def gives_priorities(self) -> bool:
        """Actors give the first priorities of what they send to a replay memory."""
        return isinstance(self.algorithm, OffPolicyConfig) and self.algorithm.gives_priorities

    @property
    def max_lag_when_new(self) -> int:
        """Largest lag of an env_step that is trained on for the first time: what its further uses leave of max_lag."""
        batches, uses = self.algorithm.buffer
        return self.lag.max_lag - (uses - 1) * batches

    @property
    def gradient_batch(self) -> int:
        """env_steps per gradient step over all learners, as far as the configuration tells: reset steps count too."""
        if isinstance(self.algorithm, OffPolicyConfig):
            return self.algorithm.batch_size
        envs = self.env.num_envs * self.batch_trajectories // self.num_acting_ranks
        return max(1, self.algorithm.unroll_length * envs // self.algorithm.gradient_steps_per_pass)

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        check_consistency(self)
        return self


def algorithm_config_class(name: Any) -> type[AlgorithmConfig]:
    """The Config class behind an algorithm's name. Raises ConfigError when there is none."""
    if not isinstance(name, str):
        raise ConfigError(f"algorithm.name={name!r} is not a string")
    if name in BUILTIN_ALGORITHMS:
        return BUILTIN_ALGORITHMS[name]
    config = getattr(load_object(name, f"algorithm.name={name!r}", tuple(BUILTIN_ALGORITHMS)), "Config", None)
    if not (isinstance(config, type) and issubclass(config, AlgorithmConfig)):
        raise ConfigError(
            f"algorithm.name={name!r} has no Config class derived from hpcrl.config.AlgorithmConfig"
        )
    return config


def load_object(path: str, what: str, builtin: tuple[str, ...] = ()) -> Any:
    """Import `package.module:name`. Raises ConfigError that names `what` and the built-in alternatives."""
    module, _, attribute = path.partition(":")
    names = f"one of {', '.join(builtin)} or " if builtin else ""
    if not module or not attribute:
        raise ConfigError(f"{what}: use {names}package.module:name")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may fail in any way
        why = error if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{what} cannot be imported: {why}; use {names}package.module:name") from error
