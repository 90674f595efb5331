"""The environment engines without hpcrl: what its adapters are measured against, what the reference uses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import envpool
import gymnasium
import numpy as np

from hpcrl.config import ConfigError, EnvConfig


def reference_network(torso: str) -> Literal["mlp", "nature_cnn"]:
    """The reference's network of a recipe's model.torso. Raises ConfigError where it has none."""
    if torso not in ("mlp", "nature_cnn"):
        raise ConfigError(f"model.torso={torso} is none of the reference's networks; use mlp or nature_cnn")
    return "nature_cnn" if torso == "nature_cnn" else "mlp"


def make_envpool(env_id: str, num_envs: int, **options: Any) -> Any:
    """EnvPool's own object with gymnasium's interface."""
    with warnings.catch_warnings():
        # gymnasium's Box warns about the precision of EnvPool's bounds, which nobody can change. The spaces
        # are made when they are first asked for.
        warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
        pool = envpool.make_gymnasium(env_id, num_envs=num_envs, **options)
        _ = pool.observation_space, pool.action_space
        return pool


def engine_stepper(config: EnvConfig, num_envs: int) -> Callable[[], object] | None:
    """Make `num_envs` environments; the result steps them once, always with the same random actions.

    Returns None for the engines `toy` and `custom`, which are nothing but their adapter.
    """
    if config.engine == "envpool":
        pool = make_envpool(config.id, num_envs, num_threads=config.num_threads, **config.kwargs)
        pool.reset()
        actions = np.stack([pool.action_space.sample() for _ in range(num_envs)])
        return lambda: pool.step(actions)
    if config.engine == "gymnasium":
        vector = gymnasium.make_vec(
            config.id, num_envs=num_envs, vectorization_mode=config.vectorization, **config.kwargs
        )
        vector.reset()
        sampled = vector.action_space.sample()
        return lambda: vector.step(sampled)
    return None
