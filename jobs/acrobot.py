"""Acrobot-v1."""

from hpcrl.config import BudgetConfig, EnvConfig, ImpalaConfig, LagConfig, ModelConfig, PPOConfig, RunConfig


def ppo() -> RunConfig:
    """Every rank acts and learns, in step."""
    return RunConfig(
        name="acrobot-ppo",
        scheme="synchronous",
        env=EnvConfig(id="Acrobot-v1", engine="envpool", num_envs=16),
        model=ModelConfig(shared_torso=False),
        algorithm=PPOConfig(
            unroll_length=128,
            gamma=0.99,
            gae_lambda=0.95,
            learning_rate=1e-3,
            anneal_learning_rate=True,
            entropy_coefficient=0.0,
            reward_scale=0.1,
        ),
        budget=BudgetConfig(env_steps=150_000),
    )


def impala() -> RunConfig:
    """One actor, one queue, one learner; the actor works one update ahead."""
    return RunConfig(
        name="acrobot-impala",
        scheme="pipeline",
        env=EnvConfig(id="Acrobot-v1", engine="envpool", num_envs=128),
        model=ModelConfig(shared_torso=False),
        algorithm=ImpalaConfig(
            unroll_length=32,
            gamma=0.99,
            learning_rate=3e-3,
            anneal_learning_rate=True,
            entropy_coefficient=0.003,
            reward_scale=0.1,
        ),
        lag=LagConfig(max_lag=1),
        budget=BudgetConfig(env_steps=1_000_000),
    )
