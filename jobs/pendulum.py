"""Pendulum-v1."""

from hpcrl.config import BudgetConfig, EnvConfig, ModelConfig, PPOConfig, RunConfig


def ppo() -> RunConfig:
    """Every rank acts and learns, in step."""
    return RunConfig(
        name="pendulum-ppo",
        scheme="synchronous",
        env=EnvConfig(id="Pendulum-v1", engine="envpool", num_envs=32),
        model=ModelConfig(shared_torso=False),
        algorithm=PPOConfig(
            unroll_length=50,
            gamma=0.9,
            gae_lambda=0.95,
            learning_rate=1e-3,
            anneal_learning_rate=True,
            epochs=10,
            num_minibatches=8,
            entropy_coefficient=0.0,
            reward_scale=0.1,
        ),
        budget=BudgetConfig(env_steps=150_000),
    )
