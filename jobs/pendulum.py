"""Pendulum-v1: swing up and balance, one continuous action; a minute."""

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


def ppo() -> RunConfig:
    """Every rank acts and learns, in step.

    Reached, greedy mean of 20 episodes: -166 (seed 0, 160,000 env_steps), -164 and -157 (seeds 1, 2; 150,000), in one
    process on one core of a 2-core virtual machine (Xeon with AVX-512, busy with other work), 17 s of CPU time.
    """
    return RunConfig(
        name="pendulum-ppo",
        scheme="synchronous",
        env=EnvConfig(id="Pendulum-v1", engine="envpool", num_envs=32),
        model=ModelConfig(shared_torso=False, action_distribution="tanh_gaussian", initial_log_std=0.5),
        algorithm=PPOConfig(
            unroll_length=100,
            gamma=0.97,  # looks some 30 env_steps ahead, about what a swing takes
            learning_rate=1e-3,
            anneal_learning_rate=True,
            entropy_coefficient=0.0,
            epochs=10,
            num_minibatches=8,
            reward_scale=0.05,
        ),
        budget=BudgetConfig(env_steps=150_000),
    )


def sac() -> RunConfig:
    """SAC: an eighth of PPO's env_steps, every second of which is followed by an update.

    Reached, greedy mean of 20 episodes: -138, -133 and -138 (seeds 0, 1, 2), after 9,500 updates, in one process.
    """
    algorithm = SACConfig(
        batch_size=128, gamma=0.98, learning_rate=1e-3, anneal_learning_rate=True, reward_scale=0.1
    )
    return _off_policy(algorithm, env_steps=20_000)


def td3() -> RunConfig:
    """TD3, as `sac` over half as many env_steps again.

    Reached, greedy mean of 20 episodes: -149, -147 and -137 (seeds 0, 1, 2). Of six runs over 20,000 one
    had -203.
    """
    algorithm = TD3Config(
        batch_size=128, gamma=0.98, learning_rate=1e-3, anneal_learning_rate=True, reward_scale=0.1
    )
    return _off_policy(algorithm, env_steps=30_000)


def _off_policy(algorithm: SACConfig | TD3Config, env_steps: int) -> RunConfig:
    return RunConfig(
        name=f"pendulum-{algorithm.name}",
        env=EnvConfig(id="Pendulum-v1", engine="envpool", num_envs=4),
        model=ModelConfig(hidden_sizes=(64, 64), activation="relu", shared_torso=False),
        algorithm=algorithm,
        replay=ReplayConfig(capacity=20_000, min_size=1_000, samples_per_insert=64),
        budget=BudgetConfig(env_steps=env_steps),
    )
