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
from hpcrl.config.off_policy import ApexConfig, DQNConfig, R2D2Config

BUILTIN_ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "a2c": A2CConfig,
    "a3c": A3CConfig,
    "apex": ApexConfig,
    "ddpg": DDPGConfig,
    "decoupled_ppo": DecoupledPPOConfig,
    "dqn": DQNConfig,
    "impact": ImpactConfig,
    "impala": ImpalaConfig,
    "ppo": PPOConfig,
    "r2d2": R2D2Config,
    "sac": SACConfig,
    "td3": TD3Config,
}
