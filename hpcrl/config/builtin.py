"""The configurations of the built-in algorithms, by name."""

from hpcrl.config.algorithms import (
    A2CConfig,
    A3CConfig,
    AlgorithmConfig,
    DecoupledPPOConfig,
    ImpactConfig,
    ImpalaConfig,
    PPOConfig,
)
from hpcrl.config.continuous import DDPGConfig, SACConfig, TD3Config

BUILTIN_ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "a2c": A2CConfig,
    "a3c": A3CConfig,
    "ddpg": DDPGConfig,
    "decoupled_ppo": DecoupledPPOConfig,
    "impact": ImpactConfig,
    "impala": ImpalaConfig,
    "ppo": PPOConfig,
    "sac": SACConfig,
    "td3": TD3Config,
}
