"""A replay rank's memory and its limiter: as a configuration asks for them, and in a checkpoint."""

from __future__ import annotations

import math

import numpy as np

from hpcrl.comm.ranks import Placement
from hpcrl.config import ConfigError, OffPolicyConfig, RunConfig
from hpcrl.data.limiter import Limiter
from hpcrl.data.replay import AnyMemory, make_replay_memory
from hpcrl.data.replay_memory import ReplayLayout
from hpcrl.data.specs import TrajectorySpec
from hpcrl.roles.arenas import shard_envs, shard_positions
from hpcrl.roles.session import Session, record_event
from hpcrl.storage.parts import Given, Values


def replay_layout(config: RunConfig, spec: TrajectorySpec, shard: int) -> ReplayLayout:
    """What a replay rank holds. Pure."""
    algorithm = off_policy(config)
    envs = len(shard_envs(config, shard))
    return ReplayLayout(
        spec=spec,
        num_columns=envs,
        capacity=config.replay.capacity * envs // config.env.num_envs,
        steps_ahead=algorithm.steps_ahead,
        sequence_steps=algorithm.sequence_steps,
    )


def make_limiter(config: RunConfig, shard: int) -> Limiter:
    """That of a replay rank: the run's limits, in proportion to its environments. Pure.

    Raises ConfigError naming the keys where actors and learners could come to wait for each other.
    """
    envs, replay = len(shard_envs(config, shard)), config.replay
    try:
        return Limiter(
            samples_per_insert=replay.samples_per_insert,
            min_size=math.ceil(replay.min_size * envs / config.env.num_envs),
            tolerance=replay.tolerance,
            batch=len(shard_positions(config, shard)),
            inserted_at_once=envs * config.algorithm.unroll_length,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def empty_memory(config: RunConfig, spec: TrajectorySpec, shard: int, rng: np.random.Generator) -> AnyMemory:
    """The memory of a replay rank with nothing in it; `spec`: of what actors send. Local."""
    algorithm = off_policy(config)
    return make_replay_memory(
        replay_layout(config, spec, shard),
        config.replay,
        shard_envs(config, shard),
        rng,
        gamma=algorithm.gamma,
        reward_scale=algorithm.reward_scale,
        reward_clip=algorithm.reward_clip,
        priority_mix=algorithm.priority_mix,
        cross_episodes=algorithm.cross_episodes,
    )


def open_memory(session: Session, placement: Placement, limiter: Limiter) -> tuple[AnyMemory, int]:
    """This replay rank's memory, as it was saved if it was, and the env_steps of the whole run. Local.

    The limiter goes on as well. Shards of another number are dealt out anew, by environments.
    """
    config, shard = session.config, placement.role_rank
    memory = empty_memory(config, session.trajectory_spec, shard, session.rng(placement, "replay"))
    saved = session.cuts.saved
    if saved is None:
        return memory, 0
    memories: list[Values] = []
    limiters: list[Values] = []
    for part in saved.of_role("replay"):
        saved.restore(part, "memory", memories.append)
        saved.restore(part, "limiter", limiters.append)
    envs = memory.env_columns
    memory.load([_arrays(one) for one in memories])
    same = [index for index, one in enumerate(memories) if np.array_equal(one["env_columns"], envs)]
    limiter.load([_arrays(limiters[index]) for index in same or range(len(limiters))], memory.inserted)
    if not same:
        text = (
            f"{len(memories)} shards of the replay memory dealt out anew; drawn by a stream of its own from the seed "
            f"and update {saved.update}"
        )
        record_event(session, placement, "stream_derived", text)
    return memory, int(saved.meta["env_steps"])


def memory_components(memory: AnyMemory, limiter: Limiter) -> dict[str, Given]:
    """Both, for a checkpoint. Local."""
    return {"memory": memory.state(), "limiter": limiter.state()}


def off_policy(config: RunConfig) -> OffPolicyConfig:
    """The algorithm's configuration, of a run that has a replay memory. Pure."""
    if not isinstance(config.algorithm, OffPolicyConfig):
        raise TypeError(f"algorithm.name={config.algorithm.name} has no replay memory")
    return config.algorithm


def _arrays(values: Values) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in values.items()}
