"""The replay memory that a configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcrl.config import ReplayConfig
from hpcrl.data.ranked_memory import RankedMemory
from hpcrl.data.replay_layout import ReplayLayout
from hpcrl.data.replay_memory import ReplayMemory

AnyMemory = ReplayMemory | RankedMemory


def make_replay_memory(
    layout: ReplayLayout,
    config: ReplayConfig,
    env_columns: Sequence[int],
    rng: np.random.Generator,
    *,
    gamma: float,
    reward_scale: float = 1.0,
    reward_clip: float | None = None,
    priority_mix: float = 0.9,
    cross_episodes: bool = False,
) -> AnyMemory:
    """By config.eviction; arguments as of ReplayMemory. Local."""
    rewards = {"gamma": gamma, "reward_scale": reward_scale}
    if config.eviction == "lowest_priority":
        return RankedMemory(layout, config, env_columns, rng, **rewards, reward_clip=reward_clip)
    return ReplayMemory(
        layout,
        config,
        env_columns,
        rng,
        **rewards,
        reward_clip=reward_clip,
        priority_mix=priority_mix,
        cross_episodes=cross_episodes,
    )
