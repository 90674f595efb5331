"""Algorithms: compute only, no MPI, no files."""

from __future__ import annotations

import numpy as np

from hpcrl.algorithms.acting import Acting, frozen_policy
from hpcrl.algorithms.base import Algorithm, Batch, LocalReducer, Reducer, State, UpdateResult
from hpcrl.config import ConfigError, RunConfig, load_object
from hpcrl.data.specs import DISCOUNTED_RETURN, PRIORITY, EnvSpec, TrajectorySpec, trajectory_spec

__all__ = [
    "Acting",
    "Algorithm",
    "Batch",
    "LocalReducer",
    "Reducer",
    "State",
    "UpdateResult",
    "algorithm_class",
    "frozen_policy",
    "make_algorithm",
    "refuse_unknown_exploration",
    "stored_spec",
]

BUILTIN = {
    "a2c": "hpcrl.algorithms.a2c:A2C",
    "a3c": "hpcrl.algorithms.a3c:A3C",
    "apex": "hpcrl.algorithms.apex:Apex",
    "ddpg": "hpcrl.algorithms.td3:TD3",
    "decoupled_ppo": "hpcrl.algorithms.decoupled_ppo:DecoupledPPO",
    "dqn": "hpcrl.algorithms.dqn:DQN",
    "impact": "hpcrl.algorithms.impact:Impact",
    "impala": "hpcrl.algorithms.impala:Impala",
    "ppo": "hpcrl.algorithms.ppo:PPO",
    "r2d2": "hpcrl.algorithms.r2d2:R2D2",
    "sac": "hpcrl.algorithms.sac:SAC",
    "td3": "hpcrl.algorithms.td3:TD3",
}
"""Built-in names; imported only when asked for."""


def algorithm_class(name: str) -> type[Algorithm]:
    """The class behind an algorithm's name. Raises ConfigError when there is none."""
    found = load_object(BUILTIN.get(name, name), f"algorithm.name={name!r}", tuple(BUILTIN))
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"algorithm.name={name!r} is not a class derived from hpcrl.algorithms.Algorithm")
    return found


def make_algorithm(config: RunConfig, env: EnvSpec) -> Algorithm:
    """Build the algorithm a run names, with network and optimizer; equal seeds give equal parameters.

    Its learning rate is that for the batches of this run.

    Raises ConfigError when the name leads to no Algorithm, the network does not fit the environment, or the algorithm
    remembers nothing though model.recurrent says so.
    """
    own = config.algorithm.scale_learning_rate(config.gradient_batch)
    algorithm = algorithm_class(own.name)(own, env, config.model, config.seed)
    if config.model.recurrent != "none" and algorithm.initial_state(1) is None:
        raise ConfigError(
            f"model.recurrent={config.model.recurrent} is not there with algorithm.name={config.algorithm.name}, "
            "which chooses by the observation alone (its initial_state gives None); use model.recurrent=none"
        )
    return algorithm


def refuse_unknown_exploration(config: RunConfig, algorithm: Algorithm) -> None:
    """Raise ConfigError for an algorithm that explores by env_steps which its actors would never hear of. Local."""
    knows = config.algorithm.uses_replay or config.scheme == "synchronous"
    if not knows and algorithm.exploration(np.zeros(1, np.int64), config.env.num_envs, 0) is not None:
        raise ConfigError(
            f"algorithm.name={config.algorithm.name} explores by env_steps, of which actors hear only where there is a "
            "replay memory; use scheme=synchronous"
        )


def stored_spec(config: RunConfig, env: EnvSpec, algorithm: Algorithm, num_envs: int) -> TrajectorySpec:
    """Of the trajectories of `num_envs` environments that the acting ranks of a run write. Pure."""
    fields = algorithm.stored_fields
    if config.algorithm.normalize_returns:
        fields += (DISCOUNTED_RETURN,)
    if config.gives_priorities:
        fields += (PRIORITY,)
    return trajectory_spec(env, config.algorithm.unroll_length, num_envs, fields)
