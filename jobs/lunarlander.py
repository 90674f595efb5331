"""LunarLander-v3."""

from hpcrl.config import (
    BudgetConfig,
    DecoupledPPOConfig,
    EnvConfig,
    LagConfig,
    ModelConfig,
    PPOConfig,
    RunConfig,
)


def ppo() -> RunConfig:
    """Every rank acts and learns, in step."""
    return RunConfig(
        name="lunarlander-ppo",
        scheme="synchronous",
        env=EnvConfig(id="LunarLander-v3", engine="envpool", num_envs=32),
        model=ModelConfig(shared_torso=False),
        algorithm=PPOConfig(
            unroll_length=256,
            gamma=0.999,
            gae_lambda=0.98,
            learning_rate=1e-3,
            anneal_learning_rate=True,
            epochs=4,
            num_minibatches=16,
            entropy_coefficient=0.01,
            reward_scale=0.05,
        ),
        budget=BudgetConfig(env_steps=1_000_000),
    )


def decoupled_ppo() -> RunConfig:
    """PPO in a pipeline, on data that may be two updates old."""
    return RunConfig(
        name="lunarlander-decoupled_ppo",
        scheme="pipeline",
        env=EnvConfig(id="LunarLander-v3", engine="envpool", num_envs=32),
        model=ModelConfig(shared_torso=False),
        algorithm=DecoupledPPOConfig(
            unroll_length=256,
            gamma=0.999,
            gae_lambda=0.98,
            learning_rate=1e-3,
            anneal_learning_rate=True,
            num_minibatches=16,
            entropy_coefficient=0.01,
            reward_scale=0.05,
        ),
        lag=LagConfig(max_lag=2),
        budget=BudgetConfig(env_steps=800_000),
    )
