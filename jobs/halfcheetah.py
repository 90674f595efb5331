"""HalfCheetah-v4: continuous control from raw observations."""

from hpcrl.config import BudgetConfig, EnvConfig, ModelConfig, PPOConfig, RunConfig


def ppo() -> RunConfig:
    """Every rank acts and learns, in step.

    A random policy scores about -280; after 200,000 env_steps episodes scored 610 and 710, the mean actions
    1,150 and 1,320 (seeds 2 and 1, one rank).
    """
    return RunConfig(
        name="halfcheetah-ppo",
        scheme="synchronous",
        env=EnvConfig(id="HalfCheetah-v4", engine="envpool", num_envs=16),
        model=ModelConfig(shared_torso=False, initial_log_std=-0.5),
        algorithm=PPOConfig(
            unroll_length=128,
            learning_rate=3e-4,
            entropy_coefficient=0.0,
            epochs=10,
            num_minibatches=32,
        ),
        budget=BudgetConfig(env_steps=1_000_000),
    )
