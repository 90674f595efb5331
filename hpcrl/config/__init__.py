"""Typed, frozen, validated configuration. Loads neither torch nor MPI."""

from hpcrl.config.algorithms import (
    A2CConfig,
    A3CConfig,
    ActorCriticConfig,
    AlgorithmConfig,
    DecoupledPPOConfig,
    ImpactConfig,
    ImpalaConfig,
    PlainGradientConfig,
    PPOConfig,
    SurrogateConfig,
)
from hpcrl.config.base import Config, ConfigError, explain, parse_value, set_dotted, unknown_key
from hpcrl.config.continuous import ContinuousConfig, DDPGConfig, SACConfig, TD3Config
from hpcrl.config.exit_codes import ExitCode
from hpcrl.config.model import ModelConfig
from hpcrl.config.off_policy import (
    ActionValueConfig,
    ApexConfig,
    DQNConfig,
    LadderConfig,
    OffPolicyConfig,
    R2D2Config,
)
from hpcrl.config.protections import Protection
from hpcrl.config.replay import ReplayConfig
from hpcrl.config.run import RunConfig, algorithm_config_class, load_object
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
from hpcrl.config.site import ComponentConfig, SiteConfig, load_site
from hpcrl.config.time_limit import in_words, parse_minutes, slurm_time

__all__ = [
    "A2CConfig",
    "A3CConfig",
    "ActionValueConfig",
    "ActorCriticConfig",
    "AlgorithmConfig",
    "ApexConfig",
    "BudgetConfig",
    "CheckpointConfig",
    "CommConfig",
    "ComponentConfig",
    "Config",
    "ConfigError",
    "ContinuousConfig",
    "DDPGConfig",
    "DQNConfig",
    "DecoupledPPOConfig",
    "EnvConfig",
    "EvaluationConfig",
    "ExitCode",
    "FaultsConfig",
    "ImpactConfig",
    "ImpalaConfig",
    "LadderConfig",
    "LagConfig",
    "LogConfig",
    "ModelConfig",
    "OffPolicyConfig",
    "PPOConfig",
    "PlainGradientConfig",
    "ProfileConfig",
    "Protection",
    "R2D2Config",
    "RanksConfig",
    "ReductionConfig",
    "ReplayConfig",
    "RunConfig",
    "SACConfig",
    "SiteConfig",
    "StorageConfig",
    "SurrogateConfig",
    "TD3Config",
    "algorithm_config_class",
    "explain",
    "in_words",
    "load_object",
    "load_site",
    "parse_minutes",
    "parse_value",
    "set_dotted",
    "slurm_time",
    "unknown_key",
]
