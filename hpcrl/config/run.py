"""RunConfig: one run, complete and checked. Everything a command needs to know before MPI starts."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from hpcrl.config.algorithms import BUILTIN_ALGORITHMS, AlgorithmConfig, SurrogateConfig
from hpcrl.config.base import Config, ConfigError
from hpcrl.config.model import ModelConfig
from hpcrl.config.sections import (
    BudgetConfig,
    CheckpointConfig,
    CommConfig,
    EnvConfig,
    EvaluationConfig,
    FaultsConfig,
    LagConfig,
    LogConfig,
    RanksConfig,
    ReductionConfig,
    StorageConfig,
)

"""Names that need no import; anything else is package.module:Class."""


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
    Always so in the synchronous scheme; in the pipeline it needs lag.max_lag of 0 or 1 (more by what reuse adds)."""
    env: EnvConfig
    model: ModelConfig = ModelConfig()
    algorithm: SerializeAsAny[AlgorithmConfig]
    ranks: RanksConfig = RanksConfig()
    lag: LagConfig = LagConfig()
    budget: BudgetConfig = BudgetConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    storage: StorageConfig = StorageConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    comm: CommConfig = CommConfig()
    reduction: ReductionConfig = ReductionConfig()
    faults: FaultsConfig = FaultsConfig()
    log: LogConfig = LogConfig()

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
    def max_lag_when_new(self) -> int:
        """Largest lag of an env_step that is trained on for the first time: what its further uses leave of max_lag."""
        batches, uses = self.algorithm.buffer
        return self.lag.max_lag - (uses - 1) * batches

    @property
    def gradient_batch(self) -> int:
        """env_steps per gradient step over all learners, as far as the configuration tells: reset steps count too."""
        envs = self.env.num_envs * self.batch_trajectories // self.num_acting_ranks
        return max(1, self.algorithm.unroll_length * envs // self.algorithm.gradient_steps_per_pass)

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        acting = self.num_acting_ranks
        if self.env.num_envs < acting * self.env.num_groups:
            raise ValueError(
                f"env.num_envs={self.env.num_envs} is too few for {acting} acting ranks x "
                f"env.num_groups={self.env.num_groups}; use at least {acting * self.env.num_groups}"
            )
        if isinstance(self.algorithm, SurrogateConfig):
            self._check_minibatches(self.algorithm)
        self._check_device()
        self._check_precision()
        self._check_gradients()
        self._check_reuse()
        if self.faults.actor_death == "continue" and (self.deterministic or self.scheme == "synchronous"):
            key = "deterministic=true" if self.deterministic else "scheme=synchronous"
            raise ValueError(
                f"faults.actor_death=continue is not there with {key}, where every rank's part counts; "
                "use faults.actor_death=end"
            )
        if self.scheme == "pipeline":
            self._check_pipeline()
        else:
            self._check_synchronous()
        return self

    def _check_precision(self) -> None:
        device, gradients = self.ranks.learner_device, self.algorithm.sends_gradients
        if self.model.precision == "float16" and (device != "cuda" or gradients):
            why = "gradients that actors compute" if gradients else f"ranks.learner_device={device}"
            raise ValueError(
                f"model.precision=float16 is not there with {why}: on a CPU its convolutions take many times as "
                "long as in float32; use model.precision=bfloat16, or ranks.learner_device=cuda"
            )

    def _check_synchronous(self) -> None:
        lag, workers = self.lag, self.ranks.workers
        if self.algorithm.batch_trajectories not in (None, workers):
            raise ValueError(
                f"algorithm.batch_trajectories={self.algorithm.batch_trajectories}: in scheme synchronous each of "
                f"the {workers} ranks gives one trajectory per update; leave it null"
            )
        if lag.publish_every_seconds is not None:
            raise ValueError(
                f"lag.publish_every_seconds={lag.publish_every_seconds:g}: nothing is published in scheme synchronous; "
                "leave it null"
            )
        if lag.injection and workers > 1:
            raise ValueError(
                f"lag.injection={lag.injection} is for runs of one process, not of ranks.workers={workers}; use "
                "ranks.workers=1 or lag.injection=0"
            )
        if lag.injection > lag.max_lag:
            raise ValueError(
                f"lag.injection={lag.injection} makes data older than lag.max_lag={lag.max_lag} allows; raise "
                f"lag.max_lag to {lag.injection}"
            )

    def _check_minibatches(self, algorithm: SurrogateConfig) -> None:
        """None of them may be empty: they consist of env_steps, or of columns where the policy is recurrent."""
        columns = self.env.num_envs * self.batch_trajectories // self.num_acting_ranks
        env_steps = (
            algorithm.unroll_length * self.env.num_envs * self.batch_trajectories // self.num_acting_ranks
        )
        recurrent = self.model.recurrent != "none"
        most, what, also = (
            (columns, f"columns of an update (model.recurrent={self.model.recurrent})", "")
            if recurrent
            else (env_steps, "env_steps of an update", "algorithm.unroll_length or ")
        )
        if algorithm.num_minibatches > most:
            raise ValueError(
                f"algorithm.num_minibatches={algorithm.num_minibatches} is more than the {most} {what}; "
                f"use fewer, or raise {also}env.num_envs"
            )

    def _check_gradients(self) -> None:
        """Where actors send gradients, one learner applies them one by one."""
        algorithm = self.algorithm
        if not algorithm.sends_gradients:
            return
        if self.scheme == "synchronous":
            raise ValueError(
                f"algorithm.name={algorithm.name} sends gradients to a learner that waits for nobody, which scheme="
                "synchronous does not have; use scheme=pipeline (in step it is algorithm.name=a2c)"
            )
        for key, value in (
            ("model.normalize_observations", self.model.normalize_observations),
            ("algorithm.normalize_returns", algorithm.normalize_returns),
        ):
            if value:
                raise ValueError(
                    f"{key}=true is not there with algorithm.name={algorithm.name}, whose learner sees no env_steps to "
                    f"count; use {key}=false or algorithm.name=a2c"
                )
        for key, count in (
            ("ranks.learners", self.ranks.learners),
            ("algorithm.batch_trajectories", algorithm.batch_trajectories),
        ):
            if count not in (None, 1):
                raise ValueError(
                    f"{key}={count}: with algorithm.name={algorithm.name} one learner applies every gradient as it "
                    f"comes; use {key}=1"
                )

    def _check_reuse(self) -> None:
        """The lag of the last use of a batch has to be within the bound, too."""
        added = self.lag.max_lag - self.max_lag_when_new
        batches, uses = self.algorithm.buffer
        if self.lag.injection and uses > 1:
            raise ValueError(
                f"lag.injection={self.lag.injection} is not there where batches are used again; use "
                "algorithm.batch_uses=1 or lag.injection=0"
            )
        if self.max_lag_when_new < 0:
            more = "" if self.scheme == "synchronous" else f", {added + 1} if actors are to work meanwhile"
            raise ValueError(
                f"lag.max_lag={self.lag.max_lag} is less than (algorithm.batch_uses={uses} - 1) x "
                f"algorithm.buffer_batches={batches}: a batch is trained on {added} updates after it was new; use "
                f"lag.max_lag={added} or more{more}"
            )

    def _check_device(self) -> None:
        """What sums by torch.distributed, and gradients on a device, cannot do."""
        device, reduction = self.ranks.learner_device, self.reduction
        if device == "cpu" and reduction.form != "torch":
            return
        why = f"ranks.learner_device={device}" if device != "cpu" else "reduction.form=torch"
        other = "ranks.learner_device=cpu" if device != "cpu" else "reduction.form=auto"
        for key, value, allowed in (
            ("compression", reduction.compression, "none"),
            ("shard_optimizer", reduction.shard_optimizer, False),
            ("exchange", "all_gather" if reduction.exchange == "auto" else reduction.exchange, "all_gather"),
        ):
            if value != allowed:
                raise ValueError(
                    f"reduction.{key}={str(value).lower()} is not there with {why}; use {other} or "
                    f"reduction.{key}={str(allowed).lower()}"
                )

    def _check_pipeline(self) -> None:
        ranks, lag, batch = self.ranks, self.lag, self.batch_trajectories
        added = lag.max_lag - self.max_lag_when_new
        reused = f" more than the {added} updates that batches are reused for" if added else ""
        for key, count in (("ranks.actors", ranks.actors), ("algorithm.batch_trajectories", batch)):
            if count < ranks.replay:
                raise ValueError(
                    f"{key}={count} is less than ranks.replay={ranks.replay}: a replay rank would have nothing "
                    f"to hold; use ranks.replay <= {count}"
                )
        if self.deterministic and self.max_lag_when_new > 1:
            raise ValueError(
                f"deterministic=true needs lag.max_lag of 0 or 1{reused}, not {lag.max_lag}: only then is the "
                "parameter version of every trajectory fixed in advance"
            )
        if self.deterministic and lag.overdue == "drop":
            raise ValueError("deterministic=true needs lag.overdue=wait: what is dropped depends on timing")
        if self.max_lag_when_new < lag.publish_every_updates - 1:
            raise ValueError(
                f"lag.max_lag={lag.max_lag} is less than lag.publish_every_updates - 1 = "
                f"{lag.publish_every_updates - 1}{reused}: the actors would wait for ever; raise max_lag"
            )
        if self.deterministic and lag.publish_every_updates > 1:
            raise ValueError("deterministic=true needs lag.publish_every_updates=1")
        if self.deterministic and lag.publish_every_seconds is not None:
            raise ValueError(
                f"deterministic=true needs lag.publish_every_seconds=null, not {lag.publish_every_seconds:g}: the "
                "clock would decide which versions there are"
            )
        if lag.publish_every_seconds is not None and lag.publish_every_updates == 1:
            raise ValueError(
                f"lag.publish_every_seconds={lag.publish_every_seconds:g} changes nothing where every update is "
                "published; raise lag.publish_every_updates too, or leave it null"
            )
        if lag.injection:
            raise ValueError(
                f"lag.injection={lag.injection} is not there in scheme pipeline, which has a lag of its own; use "
                "scheme=synchronous with ranks.workers=1, or lag.injection=0"
            )


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
