"""Configuration of the replay memory, which off-policy algorithms sample from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hpcrl.config.base import Config


class ReplayConfig(Config):
    """The replay memory, divided over ranks.replay shards. Only for algorithms that use one (dqn, sac, ...)."""

    capacity: int = Field(100_000, ge=1)
    """env_steps that all shards hold together; what is older makes room."""
    sampling: Literal["uniform", "prioritized"] = "uniform"
    """prioritized: in proportion to (|TD error| + epsilon)^alpha (Schaul et al. 2016)."""
    alpha: float = Field(0.6, ge=0, le=1)
    """prioritized: exponent of the priorities; 0 is uniform."""
    beta: float = Field(0.4, ge=0, le=1)
    """prioritized: exponent of the importance weights at the beginning."""
    beta_end: float = Field(1.0, ge=0, le=1)
    """prioritized: that exponent where the budget is used; it changes linearly."""
    eviction: Literal["fifo", "lowest_priority"] = "fifo"
    """What makes room: the oldest, or (prioritized) what has the lowest priority, which takes twice the memory: what
    stays is scattered, so the next observation is stored, too. Not with sequences or frame_stack."""
    min_size: int = Field(1_000, ge=1)
    """env_steps, of all shards, that are there before the first update."""
    samples_per_insert: float = Field(16.0, gt=0)
    """How often an env_step is sampled on average: updates x algorithm.batch_size over env_steps inserted after
    replay.min_size. Whoever is ahead, actors or learners, waits for the others."""
    tolerance: float = Field(1.0, gt=0)
    """How far ahead one side may be, in units of the larger of a batch and the env_steps that all actors insert at a
    time."""
    memory_map: str | None = None
    """Folder, best on a local disk, for memories larger than RAM: arrays become files there; null: RAM."""
    max_memory_share: float = Field(0.5, gt=0, le=1)
    """A memory that would need more than this share of its node's (or job's) memory limit is refused."""
    frame_stack: int = Field(0, ge=0)
    """Frames that an observation consists of, along its first axis: each is then stored once. 0: observations are
    stored whole."""
