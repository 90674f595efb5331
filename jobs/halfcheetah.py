"""HalfCheetah-v4: continuous control from raw observations."""

from hpcrl.config import BudgetConfig, EnvConfig, ModelConfig, PPOConfig, RunConfig


def ppo() -> RunConfig:
    """Every rank acts and learns, in step."""
    return RunConfig(
        name="halfcheetah-ppo",
        scheme="synchronous",
        env=EnvConfig(id="HalfCheetah-v4", engine="envpool", num_envs=16),
        model=ModelConfig(shared_torso=False, initial_log_std=-0.5),
        algorithm=PPOConfig(
            unroll_length=128,
            learning_rate=1e-3,
            entropy_coefficient=0.0,
            epochs=10,
            num_minibatches=32,
        ),
        budget=BudgetConfig(env_steps=1_000_000),
    )
