"""Environments behind one batched protocol. Importing this loads neither gymnasium nor EnvPool."""

from hpcrl.envs.base import (
    CallOrder,
    EpisodeTracker,
    Obs,
    Resumable,
    Step,
    VectorEnv,
    prepare_actions,
    require_choices,
)
from hpcrl.envs.evaluate import EpisodeResult, evaluate_policy, run_episodes
from hpcrl.envs.registry import env_seed, make_env_spec, make_vector_env, make_with_nan_rewards

__all__ = [
    "CallOrder",
    "EpisodeResult",
    "EpisodeTracker",
    "Obs",
    "Resumable",
    "Step",
    "VectorEnv",
    "env_seed",
    "evaluate_policy",
    "make_env_spec",
    "make_vector_env",
    "make_with_nan_rewards",
    "prepare_actions",
    "require_choices",
    "run_episodes",
]
