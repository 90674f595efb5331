"""MuJoCo: locomotion, continuous actions."""

from hpcrl.config import (
    BudgetConfig,
    EnvConfig,
    ModelConfig,
    PPOConfig,
    ReplayConfig,
    RunConfig,
    SACConfig,
    TD3Config,
)


def halfcheetah() -> RunConfig:
    """HalfCheetah-v4 by PPO. Aims at 1,443 after 1 million env_steps (Huang et al. 2022, CleanRL).

    Not trained here as it stands. Reached without both normalizations, with initial_log_std=-0.5 and a constant
    learning rate: 1,150 and 1,320 by the mean actions after 200,000 env_steps (seeds 2 and 1, one rank). A random
    policy scores about -280.
    """
    return _ppo("HalfCheetah-v4")


def halfcheetah_sac() -> RunConfig:
    """HalfCheetah-v4 by SAC. Not trained here; aims at 9,635 after 1 million env_steps (Huang et al. 2022, CleanRL)."""
    algorithm = SACConfig(learning_rate=1e-3, policy_learning_rate=3e-4, random_env_steps=5_000)
    return _off_policy("HalfCheetah-v4", algorithm)


def halfcheetah_td3() -> RunConfig:
    """HalfCheetah-v4 by TD3. Not trained here; aims at 9,583 after 1 million env_steps (Huang et al. 2022, CleanRL)."""
    return _off_policy("HalfCheetah-v4", TD3Config(learning_rate=3e-4, random_env_steps=25_000))


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


def _off_policy(env_id: str, algorithm: SACConfig | TD3Config) -> RunConfig:
    """An update for each env_step, as in CleanRL, whose settings these are; with 4 environments in place of one."""
    return RunConfig(
        name=f"{env_id.partition('-')[0].lower()}-{algorithm.name}",
        env=EnvConfig(id=env_id, engine="envpool", num_envs=4),
        model=ModelConfig(hidden_sizes=(256, 256), activation="relu", shared_torso=False),
        algorithm=algorithm,
        replay=ReplayConfig(
            capacity=1_000_000,
            min_size=algorithm.random_env_steps,
            samples_per_insert=algorithm.batch_size,
        ),
        budget=BudgetConfig(env_steps=1_000_000),
    )
