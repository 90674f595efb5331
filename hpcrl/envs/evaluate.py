"""Returns of a fixed policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hpcrl.config import EnvConfig, EvaluationConfig
from hpcrl.envs.base import Actions, Bools, Obs, VectorEnv, require_choices
from hpcrl.envs.registry import make_vector_env


class EpisodeResult(NamedTuple):
    """One evaluated episode."""

    episode_return: float
    """Undiscounted raw return of the full episode, or up to the cut."""
    length: int
    """Valid env_steps."""
    cut: bool
    """True: stopped at max_episode_steps before the environment ended it."""


def evaluate_policy(
    env: EnvConfig, settings: EvaluationConfig, act: Callable[[Obs, Bools], Actions]
) -> list[EpisodeResult]:
    """Run `settings.episodes` episodes, each in an environment of its own, made for this by `settings.seed`.

    `act` as for `run_episodes`, which see for what it raises; also ConfigError where environments cannot be made.
    """
    config = env.model_copy(update={"num_envs": settings.episodes, "num_groups": 1})
    made = make_vector_env(config, range(settings.episodes), settings.seed)
    try:
        return run_episodes(made, act, settings.max_episode_steps)
    finally:
        made.close()


def run_episodes(
    env: VectorEnv, act: Callable[[Obs, Bools], Actions], max_episode_steps: int
) -> list[EpisodeResult]:
    """Run the first episode of every environment, in order of the environments.

    Exactly one episode each: taking the first N to finish would favor short ones. `env` must be fresh
    (not yet reset) and is not closed; `act` gets obs [B, ...] of all rows, also of those that are done, and where
    these are the first of an episode [B].

    Raises:
        ValueError: max_episode_steps is less than 1.
        RuntimeError: an action mask allows nothing.
    """
    if max_episode_steps < 1:
        raise ValueError(f"max_episode_steps={max_episode_steps}; use at least 1")
    results: list[EpisodeResult | None] = [None] * env.num_envs
    running = np.ones(env.num_envs, bool)
    returns = np.zeros(env.num_envs, np.float64)
    lengths = np.zeros(env.num_envs, np.int64)
    obs, begins = env.reset(), np.ones(env.num_envs, bool)
    require_choices(env.spec, obs, running)
    while running.any():
        env.send(act(obs, begins))
        step = env.recv()
        obs, begins = step.obs, ~step.valid
        require_choices(env.spec, obs, ~(step.terminated | step.truncated))
        returns += step.reward
        lengths += step.valid
        finished = running & (step.episode_length > 0)
        for row in np.flatnonzero(finished):
            results[row] = EpisodeResult(
                float(step.episode_return[row]), int(step.episode_length[row]), cut=False
            )
        cut = running & ~finished & (lengths >= max_episode_steps)
        for row in np.flatnonzero(cut):
            results[row] = EpisodeResult(float(returns[row]), int(lengths[row]), cut=True)
        running &= ~(finished | cut)
    return [result for result in results if result is not None]
