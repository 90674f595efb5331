"""Typed, frozen, validated configuration. Loads neither torch nor MPI."""

from hpcrl.config.algorithms import AlgorithmConfig, ImpalaConfig, ModelConfig, PPOConfig
from hpcrl.config.base import Config, ConfigError, explain, parse_value, set_dotted, unknown_key
from hpcrl.config.exit_codes import ExitCode
from hpcrl.config.run import RunConfig, algorithm_config_class, load_object
from hpcrl.config.sections import (
    BudgetConfig,
    CheckpointConfig,
    CommConfig,
    EnvConfig,
    EvaluationConfig,
    LagConfig,
    LogConfig,
    RanksConfig,
    ReductionConfig,
    StorageConfig,
)

__all__ = [
    "AlgorithmConfig",
    "BudgetConfig",
    "CheckpointConfig",
    "CommConfig",
    "Config",
    "ConfigError",
    "EnvConfig",
    "EvaluationConfig",
    "ExitCode",
    "ImpalaConfig",
    "LagConfig",
    "LogConfig",
    "ModelConfig",
    "PPOConfig",
    "RanksConfig",
    "ReductionConfig",
    "RunConfig",
    "StorageConfig",
    "algorithm_config_class",
    "explain",
    "load_object",
    "parse_value",
    "set_dotted",
    "unknown_key",
]
