"""What the tests of off-policy algorithms share: settings of each, and made-up samples of a replay memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcrl.algorithms import Batch, algorithm_class
from hpcrl.algorithms.off_policy import OffPolicyAlgorithm
from hpcrl.config import (
    ApexConfig,
    DDPGConfig,
    DQNConfig,
    ModelConfig,
    OffPolicyConfig,
    R2D2Config,
    SACConfig,
    TD3Config,
)
from hpcrl.data.specs import EnvSpec
from tests.unit.algorithms.support import CONTINUOUS, DISCRETE, SMALL, make_batch, random_batch


class Setup(NamedTuple):
    """One algorithm as it is tested."""

    config: OffPolicyConfig
    model: ModelConfig = SMALL
    env: EnvSpec = DISCRETE


LSTM = ModelConfig(hidden_sizes=(8,), recurrent="lstm", recurrent_size=5)
APART = ModelConfig(hidden_sizes=(8,), shared_torso=False)
SETUPS: dict[str, Setup] = {
    "apex": Setup(ApexConfig(learning_rate=3e-3, target_update_updates=2)),
    "ddpg": Setup(DDPGConfig(learning_rate=3e-3), APART, CONTINUOUS),
    "dqn": Setup(DQNConfig(learning_rate=3e-3, dueling=False, target_tau=0.3, target_update_updates=1)),
    "r2d2": Setup(
        R2D2Config(
            learning_rate=3e-3,
            unroll_length=3,
            burn_in_steps=2,
            trained_steps=4,
            n_step=2,
            target_update_updates=2,
        ),
        LSTM,
    ),
    "sac": Setup(SACConfig(learning_rate=3e-3), APART, CONTINUOUS),
    "td3": Setup(TD3Config(learning_rate=3e-3), APART, CONTINUOUS),
}


def build_setup(setup: Setup, seed: int = 0) -> OffPolicyAlgorithm:
    algorithm = algorithm_class(setup.config.name)(setup.config, setup.env, setup.model, seed)
    assert isinstance(algorithm, OffPolicyAlgorithm)
    return algorithm


def replayed(algorithm: OffPolicyAlgorithm, env: EnvSpec, num_columns: int, seed: int) -> Batch:
    """Random transitions, or sequences with ends of episodes within, as update number `seed` gets them."""
    rng = np.random.default_rng(seed)
    weight = rng.uniform(0.2, 1.0, (1, num_columns)).astype(np.float32)
    length = algorithm.config.sequence_steps
    start = algorithm.initial_state(1)
    state_size = 0 if start is None else start.shape[1]
    drawn = random_batch(env, length or 1, num_columns, seed, state_size=state_size).fields
    fields = {name: values.numpy() for name, values in drawn.items() if name != "behavior_log_prob"}
    if length:
        return make_batch(fields | {"weight": weight}, seed)
    terminated = fields.pop("terminated")
    del fields["truncated"]
    fields |= {
        "obs": fields["obs"][:1],
        "next_obs": fields["obs"][1:],
        "discount": np.where(terminated, 0.0, algorithm.config.gamma).astype(np.float32),
        "weight": weight,
    }
    return make_batch(fields, seed)
