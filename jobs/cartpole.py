"""CartPole-v1: solved in seconds; the first thing to run on a new machine."""

from hpcrl.config import BudgetConfig, EnvConfig, ImpalaConfig, ModelConfig, PPOConfig, RunConfig


def impala() -> RunConfig:
    """One actor, one queue, one learner; the actor works one update ahead."""
    return RunConfig(
        name="cartpole-impala",
        scheme="pipeline",
        env=EnvConfig(id="CartPole-v1", engine="envpool", num_envs=256),
        model=ModelConfig(shared_torso=False),
        algorithm=ImpalaConfig(unroll_length=32, learning_rate=3e-3, entropy_coefficient=0.01),
        budget=BudgetConfig(env_steps=4_000_000),
    )


def ppo() -> RunConfig:
    """Every rank acts and learns, in step; one rank is the plain single-machine PPO."""
    return RunConfig(
        name="cartpole-ppo",
        scheme="synchronous",
        env=EnvConfig(id="CartPole-v1", engine="envpool", num_envs=16),
        model=ModelConfig(shared_torso=False),
        algorithm=PPOConfig(unroll_length=128, learning_rate=1e-3, anneal_learning_rate=True),
        budget=BudgetConfig(env_steps=300_000),
    )
