"""How old the data of an update would be. Pure."""

from __future__ import annotations

from hpcrl.config import OffPolicyConfig, RunConfig


def mean_lag(config: RunConfig, env_steps: float, *, learners_first: bool) -> float:
    """Mean over a run, of what the last uses of a batch add, too. `learners_first`: those never wait, but actors do."""
    if isinstance(config.algorithm, OffPolicyConfig):
        return _mean_age(config) / env_steps / 2
    batches, uses = config.algorithm.buffer
    reused = (uses - 1) * batches / 2
    if config.scheme == "synchronous":
        return config.lag.injection + reused
    most = config.max_lag_when_new
    # actors that never wait begin each trajectory while the one before is trained on; ahead of a learner that
    # never waits they are as far as they may
    return (most if learners_first else min(most, 1)) + reused


def _mean_age(config: RunConfig) -> float:
    """env_steps that lie in the replay memory, on average over the run."""
    first, last = config.replay.min_size, max(config.budget.env_steps, config.replay.min_size + 1)
    full = min(max(config.replay.capacity, first), last)
    filling = (full - first) * (first + full) / 2
    return (filling + (last - full) * full) / (last - first)
