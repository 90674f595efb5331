"""LunarLander-v3: land between the flags; 200 counts as solved. About two minutes of one core.

Published with settings like these, at 1 million env_steps: 242 +- 32 (RL Baselines3 Zoo, PPO on LunarLander-v2).
"""

from hpcrl.config import (
    BudgetConfig,
    DecoupledPPOConfig,
    DQNConfig,
    EnvConfig,
    LagConfig,
    ModelConfig,
    PPOConfig,
    ReplayConfig,
    RunConfig,
)


def ppo() -> RunConfig:
    """Every rank acts and learns, in step.

    Reached, greedy mean of 20 episodes in one process: 287, 287, 280 (seeds 0 to 2, 106 to 161 s). A million env_steps
    are too few for every seed: 266, 146, 260.
    """
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
        budget=BudgetConfig(env_steps=2_000_000),
    )


def decoupled_ppo() -> RunConfig:
    """PPO in a pipeline, on data that may be two updates old; else the settings of `ppo`.

    Reached, greedy mean of 20 episodes in one process, every batch two updates late: 284, 286, 287 (seeds 0 to 2).
    """
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
        budget=BudgetConfig(env_steps=2_000_000),
    )


def dqn() -> RunConfig:
    """Double, dueling DQN, three steps ahead; one rank. Aims at 200; not trained to its end yet."""
    return RunConfig(
        name="lunarlander-dqn",
        env=EnvConfig(id="LunarLander-v3", engine="envpool", num_envs=16),
        model=ModelConfig(hidden_sizes=(128, 128), activation="relu"),
        algorithm=DQNConfig(
            batch_size=512,
            gamma=0.99,
            learning_rate=1e-3,
            anneal_learning_rate=True,
            n_step=3,
            target_update_updates=1,
            target_tau=0.02,
            epsilon_env_steps=50_000,
            epsilon_end=0.02,
            reward_scale=0.05,
        ),
        replay=ReplayConfig(capacity=100_000, min_size=5_000, samples_per_insert=32),
        budget=BudgetConfig(env_steps=200_000),
    )
