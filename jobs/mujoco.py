"""MuJoCo: locomotion from raw observations, continuous actions."""

from hpcrl.config import BudgetConfig, EnvConfig, ModelConfig, PPOConfig, RunConfig


def halfcheetah() -> RunConfig:
    """HalfCheetah-v4 by PPO.

    Reached: 1,150 and 1,320 by the mean actions after 200,000 env_steps (seeds 2 and 1, one rank); a random policy
    scores about -280. Aims at 1,443 after 1 million env_steps (Huang et al. 2022, CleanRL).
    """
    return _ppo("HalfCheetah-v4")


def hopper() -> RunConfig:
    """Hopper-v4 by PPO. Not trained here; aims at 2,383 after 1 million env_steps (Huang et al. 2022, CleanRL)."""
    return _ppo("Hopper-v4")


def walker2d() -> RunConfig:
    """Walker2d-v4 by PPO. Not trained here; aims at 2,288 after 1 million env_steps (Huang et al. 2022, CleanRL)."""
    return _ppo("Walker2d-v4")


def _ppo(env_id: str) -> RunConfig:
    """Every rank acts and learns, in step. Batch, epochs and minibatches as in Schulman et al. (2017), table 3."""
    return RunConfig(
        name=f"{env_id.partition('-')[0].lower()}-ppo",
        scheme="synchronous",
        env=EnvConfig(id=env_id, engine="envpool", num_envs=16),
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
