"""MuJoCo: locomotion, continuous actions."""

from hpcrl.config import BudgetConfig, EnvConfig, ModelConfig, PPOConfig, RunConfig


def halfcheetah() -> RunConfig:
    """HalfCheetah-v4 by PPO. Aims at 1,443 after 1 million env_steps (Huang et al. 2022, CleanRL).

    Not trained here as it stands. Reached without both normalizations, with initial_log_std=-0.5 and a constant
    learning rate: 1,150 and 1,320 by the mean actions after 200,000 env_steps (seeds 2 and 1, one rank). A random
    policy scores about -280.
    """
    return _ppo("HalfCheetah-v4")


def hopper() -> RunConfig:
    """Hopper-v4 by PPO. Not trained here; aims at 2,383 after 1 million env_steps (Huang et al. 2022, CleanRL)."""
    return _ppo("Hopper-v4")


def walker2d() -> RunConfig:
    """Walker2d-v4 by PPO. Not trained here; aims at 2,288 after 1 million env_steps (Huang et al. 2022, CleanRL)."""
    return _ppo("Walker2d-v4")


def _ppo(env_id: str) -> RunConfig:
    """Every rank acts and learns, in step. The settings of CleanRL's, with 16 environments in place of one."""
    return RunConfig(
        name=f"{env_id.partition('-')[0].lower()}-ppo",
        scheme="synchronous",
        env=EnvConfig(id=env_id, engine="envpool", num_envs=16),
        model=ModelConfig(shared_torso=False, normalize_observations=True),
        algorithm=PPOConfig(
            unroll_length=128,
            learning_rate=3e-4,
            anneal_learning_rate=True,
            entropy_coefficient=0.0,
            value_clip=0.2,
            epochs=10,
            num_minibatches=32,
            normalize_returns=True,
        ),
        budget=BudgetConfig(env_steps=1_000_000),
    )
