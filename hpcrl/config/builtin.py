"""The names of the algorithms that come with hpcrl."""

from __future__ import annotations

from hpcrl.config.algorithms import (
    A2CConfig,
    A3CConfig,
    AlgorithmConfig,
    DecoupledPPOConfig,
    ImpactConfig,
    ImpalaConfig,
    PPOConfig,
)
from hpcrl.config.off_policy import ApexConfig, DQNConfig, R2D2Config

BUILTIN_ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "a2c": A2CConfig,
    "a3c": A3CConfig,
    "apex": ApexConfig,
    "decoupled_ppo": DecoupledPPOConfig,
    "dqn": DQNConfig,
    "impact": ImpactConfig,
    "impala": ImpalaConfig,
    "ppo": PPOConfig,
    "r2d2": R2D2Config,
}
"""Configuration of each built-in name."""
