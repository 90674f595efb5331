"""Pong from pixels, as EnvPool renders it: four stacked 84 x 84 gray frames, every fourth frame acted on."""

from hpcrl.config import BudgetConfig, EnvConfig, ImpalaConfig, LagConfig, ModelConfig, RunConfig


def impala() -> RunConfig:
    """One actor, one queue, one learner. Unroll, entropy and learning rate as in Espeholt et al. (2018)."""
    return RunConfig(
        name="pong-impala",
        scheme="pipeline",
        env=EnvConfig(id="Pong-v5", engine="envpool", num_envs=32, kwargs={"stack_num": 4}),
        model=ModelConfig(torso="nature_cnn", hidden_sizes=(512,), activation="relu"),
        algorithm=ImpalaConfig(
            unroll_length=20,
            learning_rate=6e-4,
            anneal_learning_rate=True,
            entropy_coefficient=0.01,
            reward_clip=1.0,
        ),
        lag=LagConfig(max_lag=1),
        budget=BudgetConfig(env_steps=10_000_000),
    )
