"""Atari from pixels, as EnvPool renders it: four stacked 84 x 84 gray frames, every fourth frame acted on.

Not trained here: what each recipe aims at is published, for settings as near to these as hpcrl has them.
"""

from hpcrl.config import (
    ApexConfig,
    BudgetConfig,
    EnvConfig,
    ImpalaConfig,
    LagConfig,
    ModelConfig,
    PPOConfig,
    RanksConfig,
    ReplayConfig,
    RunConfig,
)


def pong_impala() -> RunConfig:
    """Pong by IMPALA. Aims at 20.4 after 50 million env_steps (Espeholt et al. 2018, table C.1, shallow network)."""
    return _impala("Pong-v5")


def pong_ppo() -> RunConfig:
    """Pong by PPO. Aims at 20.4 after 10 million env_steps (Huang et al. 2022, CleanRL: PPO on NoFrameskip-v4)."""
    return _ppo("Pong-v5")


def pong_apex() -> RunConfig:
    """Pong by Ape-X. Aims at 20.9 (Horgan et al. 2018, appendix), reached there by 360 actors in 22.8 billion frames.

    Eight actors of 32 environments stand for the paper's 360. Batch, n, gamma, priorities and the ladder are the
    paper's, as is the ratio of samples to env_steps; Adam is in place of its RMSProp. Each frame is stored once.
    """
    return RunConfig(
        name="pong-apex",
        env=EnvConfig(id="Pong-v5", engine="envpool", num_envs=256, kwargs={"stack_num": 4}),
        model=_network(),
        algorithm=ApexConfig(
            unroll_length=50,
            batch_size=512,
            learning_rate=1e-4,
            target_update_updates=2_500,
            reward_clip=1.0,
        ),
        ranks=RanksConfig(actors=8, replay=2, learners=1),
        replay=ReplayConfig(
            capacity=2_000_000,
            sampling="prioritized",
            beta_end=0.4,
            min_size=50_000,
            samples_per_insert=0.8,
            frame_stack=4,
        ),
        budget=BudgetConfig(env_steps=50_000_000),
    )


def breakout_impala() -> RunConfig:
    """Breakout by IMPALA. Aims at 640 after 50 million env_steps (Espeholt et al. 2018, table C.1, shallow network)."""
    return _impala("Breakout-v5")


def breakout_ppo() -> RunConfig:
    """Breakout by PPO. Aims at 415 after 10 million env_steps (Huang et al. 2022, CleanRL: PPO on NoFrameskip-v4)."""
    return _ppo("Breakout-v5")


def _impala(env_id: str) -> RunConfig:
    """One actor, one queue, one learner. Unroll, batch, entropy and learning rate as in Espeholt et al. (2018).

    Adam in place of the paper's RMSProp, and the mean of the loss in place of its sum.
    """
    return RunConfig(
        name=f"{_game(env_id)}-impala",
        scheme="pipeline",
        env=EnvConfig(id=env_id, engine="envpool", num_envs=32, kwargs={"stack_num": 4}),
        model=_network(),
        algorithm=ImpalaConfig(
            unroll_length=20,
            learning_rate=6e-4,
            anneal_learning_rate=True,
            entropy_coefficient=0.01,
            reward_clip=1.0,
        ),
        lag=LagConfig(max_lag=1),
        budget=BudgetConfig(env_steps=50_000_000),
    )


def _ppo(env_id: str) -> RunConfig:
    """Every rank acts and learns, in step. As in Schulman et al. (2017), table 5, but for the 3 epochs of the paper.

    As in the published runs, a lost life ends an episode in training; the returns logged are those of whole games.
    """
    return RunConfig(
        name=f"{_game(env_id)}-ppo",
        scheme="synchronous",
        env=EnvConfig(
            id=env_id, engine="envpool", num_envs=8, kwargs={"stack_num": 4, "episodic_life": True}
        ),
        model=_network(),
        algorithm=PPOConfig(
            unroll_length=128,
            learning_rate=2.5e-4,
            anneal_learning_rate=True,
            clip_epsilon=0.1,
            value_clip=0.1,
            entropy_coefficient=0.01,
            reward_clip=1.0,
        ),
        budget=BudgetConfig(env_steps=10_000_000),
    )


def _network() -> ModelConfig:
    return ModelConfig(torso="nature_cnn", hidden_sizes=(512,), activation="relu")


def _game(env_id: str) -> str:
    return env_id.partition("-")[0].lower()
