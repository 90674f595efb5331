"""Recall, a toy task that only a policy with a memory can solve: a cue, eight env_steps of nothing, then the question.

The best return is 1. A policy that remembers nothing gets 1/4, whatever it does. Each takes about 15 s of CPU time.
"""

from typing import Literal

from hpcrl.config import (
    BudgetConfig,
    EnvConfig,
    EvaluationConfig,
    ImpalaConfig,
    LagConfig,
    ModelConfig,
    PPOConfig,
    R2D2Config,
    ReplayConfig,
    RunConfig,
)

RECALL = EnvConfig(id="recall", engine="toy", num_envs=32, kwargs={"size": 4, "delay": 8})
EVALUATION = EvaluationConfig(episodes=200)


def gru() -> RunConfig:
    """PPO with a GRU; one rank."""
    return _ppo("gru")


def lstm() -> RunConfig:
    """PPO with an LSTM; one rank."""
    return _ppo("lstm")


def feedforward() -> RunConfig:
    """The same without a cell: it stays at chance."""
    return _ppo("none")


def impala() -> RunConfig:
    """An LSTM in a pipeline: what the actor remembers comes with each trajectory, one update late."""
    return RunConfig(
        name="memory-impala",
        scheme="pipeline",
        env=RECALL,
        model=_model("lstm"),
        algorithm=ImpalaConfig(
            unroll_length=32, learning_rate=3e-3, anneal_learning_rate=True, entropy_coefficient=0.003
        ),
        lag=LagConfig(max_lag=1),
        budget=BudgetConfig(env_steps=600_000),
        evaluation=EVALUATION,
    )


def r2d2() -> RunConfig:
    """R2D2 with an LSTM, from a replay memory of sequences; one rank.

    Ended with 1.00: seed 2 as it stands, seed 1 on 80,000 env_steps, seed 0 with half as many updates.
    """
    return RunConfig(
        name="memory-r2d2",
        env=RECALL,
        model=_model("lstm"),
        algorithm=R2D2Config(
            unroll_length=10,
            batch_size=32,
            burn_in_steps=10,
            trained_steps=20,
            gamma=0.97,
            learning_rate=2e-3,
            anneal_learning_rate=True,
            target_update_updates=50,
            rescale_epsilon=None,
        ),
        replay=ReplayConfig(capacity=50_000, sampling="prioritized", min_size=2_000, samples_per_insert=0.5),
        budget=BudgetConfig(env_steps=50_000),
        evaluation=EVALUATION,
    )


def _ppo(recurrent: Literal["none", "gru", "lstm"]) -> RunConfig:
    return RunConfig(
        name=f"memory-{'feedforward' if recurrent == 'none' else recurrent}",
        scheme="synchronous",
        env=RECALL,
        model=_model(recurrent),
        algorithm=PPOConfig(unroll_length=32, learning_rate=2e-3, anneal_learning_rate=True),
        budget=BudgetConfig(env_steps=100_000),
        evaluation=EVALUATION,
    )


def _model(recurrent: Literal["none", "gru", "lstm"]) -> ModelConfig:
    return ModelConfig(hidden_sizes=(32,), recurrent=recurrent, recurrent_size=32)
