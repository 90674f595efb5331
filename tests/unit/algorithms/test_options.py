"""No option of an algorithm or a network is accepted and then has no effect."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

import numpy as np
import pytest

from hpcrl.algorithms import LocalReducer, make_algorithm
from hpcrl.algorithms.off_policy import OffPolicyAlgorithm
from hpcrl.config import (
    ActionValueConfig,
    ConfigError,
    ContinuousConfig,
    ModelConfig,
    OffPolicyConfig,
    RunConfig,
)
from hpcrl.config.builtin import BUILTIN_ALGORITHMS
from hpcrl.data.specs import EnvSpec
from tests.unit.algorithms.replayed import replayed
from tests.unit.algorithms.support import CONTINUOUS, DISCRETE, random_batch
from tests.unit.algorithms.test_a3c import sent

OF_THE_RUN = {"name", "unroll_length", "batch_trajectories", "max_nonfinite_updates"} | {
    "buffer_batches",
    "batch_uses",
}
"""Keys that the roles read, not the algorithm: tests of runs see their effect."""
OF_THE_MEMORY = {"batch_size", "gamma", "n_step", "reward_clip", "reward_scale"}
"""Keys that the replay memory reads, whose tests see their effect; where actors give priorities they do, too."""
ALTERNATIVES: dict[str, Any] = {
    "learning_rate_scaling": "sqrt",
    "reference_batch": 128,
    "reward_clip": 0.1,
    "rows_per_pass": 3,
    "max_grad_norm": 1e-3,
    "warmup_updates": 5,
    "target_tau": 0.5,
    "rescale_epsilon": None,
    "value_clip": 0.01,
    "dual_clip": 1.21,
    "target_update_updates": 1,
    "action_distribution": "tanh_gaussian",
    "target_kl": 1e-6,
    "behavior_weight_cap": 0.9,
    "torso": "nature_cnn",
    "hidden_sizes": [8, 8],
    "activation": "relu",
    "precision": "bfloat16",
    "recurrent": "gru",
    "initial_log_std": -0.5,
    "observation_epsilon": 0.5,
    "policy_learning_rate": 1e-3,
    "temperature_learning_rate": 1e-3,
    "target_entropy": 7.0,
    "random_env_steps": 100,
    "target_noise": 0.3,
}
"""Another value, where it is not the half, one more, or the opposite of the default."""
OF_ONE = {("sac", "action_distribution"): "gaussian"}
"""The same of one algorithm."""
NEEDED: dict[str, dict[str, Any]] = {
    "target_noise_clip": {"target_noise": 0.2},
    "double": {"learning_rate": 0.1},
    "target_tau": {"target_update_updates": 1},
    "clip_epsilon": {"learning_rate": 0.03},
    "dual_clip": {"learning_rate": 0.3},
    "learning_rate_scaling": {"learning_rate_scaling": "linear", "reference_batch": 32},
    "reference_batch": {"learning_rate_scaling": "linear", "reference_batch": 32},
    "normalized_reward_clip": {"normalize_returns": True, "normalized_reward_clip": 0.2},
    "observation_clip": {"normalize_observations": True, "observation_clip": 1.0},
    "observation_epsilon": {"normalize_observations": True},
    "recurrent_size": {"recurrent": "lstm"},
}
"""What else must be set for a key to mean anything."""
MODEL_KEYS = set(ModelConfig.model_fields)
KEYS = [
    (name, key)
    for name, config in BUILTIN_ALGORITHMS.items()
    for key in [*(config.model_fields.keys() - OF_THE_RUN), *MODEL_KEYS]
    if not (key in OF_THE_MEMORY and "batch_size" in config.model_fields)
    or (key != "batch_size" and name in ("apex", "r2d2"))
    if not (key == "initial_log_std" and issubclass(config, ActionValueConfig))  # of continuous actions alone
]


def other(key: str, value: Any) -> Any:
    if key in ALTERNATIVES and ALTERNATIVES[key] != value:
        return ALTERNATIVES[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    assert isinstance(value, float), f"name another value of {key} in ALTERNATIVES"
    return value / 2


def settings(name: str, values: dict[str, Any]) -> dict[str, Any]:
    sections: dict[str, dict[str, Any]] = {"algorithm": {"name": name}, "model": {"hidden_sizes": [8]}}
    if issubclass(BUILTIN_ALGORITHMS[name], ContinuousConfig):
        sections["model"]["shared_torso"] = False
    for key, value in values.items():
        sections["model" if key in MODEL_KEYS else "algorithm"][key] = value
    if name == "r2d2":
        sections["model"] = {"recurrent": "lstm", "recurrent_size": 5} | sections["model"]
    if issubclass(BUILTIN_ALGORITHMS[name], OffPolicyConfig):
        sections["replay"] = {"sampling": "prioritized"}
    return {"name": "test", "env": {"id": "x"}, **sections}


@functools.cache
def trace(name: str, values: str, continuous: bool) -> str:
    """What two updates made of the parameters and said of themselves."""
    env = CONTINUOUS if continuous else DISCRETE
    config = RunConfig.parse(settings(name, json.loads(values)))
    algorithm, worker = make_algorithm(config, env), make_algorithm(config, env)
    if isinstance(algorithm, OffPolicyAlgorithm):
        return trace_off_policy(algorithm, env)
    digest, size = hashlib.sha256(), algorithm.network.state_size  # type: ignore[attr-defined]
    for update in range(2):
        batch = random_batch(env, 6, 5, seed=update, update=update, state_size=size)
        batch.fields["discounted_return"] = batch.fields["reward"].cumsum(0)  # type: ignore[index]
        if config.algorithm.sends_gradients:
            worker.parameters.load(algorithm.parameters.numpy)
            batch = sent([worker], [batch], update)
        result = algorithm.update(batch, LocalReducer(), 0.5)
        algorithm.observe(batch, LocalReducer())
        digest.update(algorithm.parameters.vector.numpy().tobytes() + repr(result.metrics).encode())
    return digest.hexdigest()


def trace_off_policy(algorithm: OffPolicyAlgorithm, env: EnvSpec) -> str:
    """The same of one that learns from replay, with its priorities and how it acts."""
    digest = hashlib.sha256()
    for update in range(2):
        batch = replayed(algorithm, env, 5, seed=update)
        result = algorithm.update(batch, LocalReducer(), 0.5)
        assert result.priorities is not None
        digest.update(algorithm.parameters.vector.numpy().tobytes() + repr(result.metrics).encode())
        digest.update(algorithm.target.vector.numpy().tobytes() + result.priorities.tobytes())
    if algorithm.config.gives_priorities:
        digest.update(algorithm.first_priorities(trajectory(algorithm, env)).tobytes())
    obs = np.ones((3, *env.observation.shape), np.float32)
    for env_steps in (300, 10**6):
        explored = algorithm.exploration(np.arange(3), 4, env_steps)
        digest.update(b"" if explored is None else explored.tobytes())
        if algorithm.initial_state(1) is None:
            acted = algorithm.act(obs, np.random.default_rng(0), exploration=explored)
            digest.update(acted["action"].tobytes())
    return digest.hexdigest()


def trajectory(algorithm: OffPolicyAlgorithm, env: EnvSpec) -> dict[str, Any]:
    """As an actor has just collected it."""
    state = algorithm.initial_state(1)
    size = 0 if state is None else state.shape[1]
    return {k: v.numpy() for k, v in random_batch(env, 9, 5, seed=7, state_size=size).fields.items()}


@pytest.mark.parametrize(("name", "key"), sorted(KEYS))
def test_every_key_has_an_effect_or_is_refused(name: str, key: str) -> None:
    needed = NEEDED.get(key, {})
    section = ModelConfig if key in MODEL_KEYS else BUILTIN_ALGORITHMS[name]
    default = needed.get(key, section.model_fields[key].default)
    if key == "shared_torso":
        default = settings(name, {})["model"].get(key, default)
    value = OF_ONE.get((name, key), other(key, default))
    assert value != default
    of_continuous = issubclass(BUILTIN_ALGORITHMS[name], ContinuousConfig)
    continuous = of_continuous or key in ("initial_log_std", "action_distribution")
    try:
        before = trace(name, json.dumps(needed), continuous)
        after = trace(name, json.dumps(needed | {key: value}), continuous)
    except ConfigError as error:
        assert any(one in str(error) for one in (key, *needed))
        return
    assert after != before
