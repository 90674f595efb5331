"""Acrobot-v1: swing the free end up, -1 for each env_step until then; seconds.

The scores are greedy means of 20 episodes, reached in one process on one core of a 2-core virtual machine (Xeon with
AVX-512, busy with other work), the times CPU time of acting and learning.
"""

from hpcrl.config import BudgetConfig, EnvConfig, ImpalaConfig, LagConfig, ModelConfig, PPOConfig, RunConfig


def ppo() -> RunConfig:
    """Every rank acts and learns, in step.

    Reached: -85, -82 and -81 (seeds 0, 1, 2) after 100,000 env_steps, 5 to 7 s.
    """
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
        budget=BudgetConfig(env_steps=100_000),
    )


def impala() -> RunConfig:
    """One actor, one queue, one learner; the actor works one update ahead.

    Reached, with every batch one update late: -83, -84 and -86 (seeds 0, 1, 2) after 400,000 env_steps, 4 to 6 s.
    """
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
        budget=BudgetConfig(env_steps=400_000),
    )
