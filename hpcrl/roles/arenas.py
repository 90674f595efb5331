"""Where trajectories and batches lie: sizes of the arenas, known to every rank alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from hpcrl.comm.ranks import share
from hpcrl.comm.replay_link import SLOTS
from hpcrl.comm.rows import Arena
from hpcrl.comm.world import World
from hpcrl.config import OffPolicyConfig, RunConfig
from hpcrl.data.admission import most_alive
from hpcrl.data.specs import (
    PRIORITY,
    EnvSpec,
    TrajectorySpec,
    sequence_spec,
    trajectory_spec,
    transition_spec,
)
from hpcrl.data.trajectory import TrajectoryLayout


@dataclass(frozen=True, slots=True)
class Arenas:
    """Memory of the pipeline's large messages."""

    trajectories: Arena
    """Owned by the replay ranks: one row per trajectory that was granted and is not trained on (or in the replay
    memory) yet."""
    batches: Arena
    """Owned by the learners: for each replay rank the two slots of its link."""


def open_arenas(world: World, env: EnvSpec, spec: TrajectorySpec) -> Arenas:
    """Make both. Collective over the world."""
    config = world.config
    rows = slots = 0
    for placement in world.placements:
        if placement.role == "replay":
            rows = trajectory_rows(config, placement.role_rank)
        elif placement.role == "learner":
            slots = SLOTS * config.ranks.replay
    largest = slot_bytes(config, env, spec)
    return Arenas(Arena(world, rows, TrajectoryLayout(spec).nbytes), Arena(world, slots, largest))


def slot_bytes(config: RunConfig, env: EnvSpec, spec: TrajectorySpec) -> int:
    """Of the largest part of a batch. Pure."""
    pairs = [(s, n) for s in range(config.ranks.replay) for n in range(config.ranks.learners)]
    return max(part_layout(config, env, spec, shard, learner).nbytes for shard, learner in pairs)


def trajectory_rows(config: RunConfig, shard: int) -> int:
    """Rows that a replay rank can need. Pure."""
    actors = len(range(shard, config.ranks.actors, config.ranks.replay))
    if config.algorithm.uses_replay:
        return actors * config.comm.slots
    alive = most_alive(
        batch=len(shard_positions(config, shard)),
        max_lag=config.max_lag_when_new,
        actors=actors,
        grants_per_actor=config.comm.slots,
    )
    # those that were offered to an actor that died are not used again
    return alive + (actors * config.comm.slots if config.faults.actor_death == "continue" else 0)


def shard_envs(config: RunConfig, shard: int) -> list[int]:
    """Global indices of the environments whose actors give to this replay rank. Pure."""
    actors = range(shard, config.ranks.actors, config.ranks.replay)
    return [env for actor in actors for env in share(config.env.num_envs, config.ranks.actors, actor)]


def batch_positions(config: RunConfig) -> int:
    """Positions of a batch, over all replay ranks and learners: trajectories, or what is sampled. Pure."""
    algorithm = config.algorithm
    return algorithm.batch_size if isinstance(algorithm, OffPolicyConfig) else config.batch_trajectories


def shard_positions(config: RunConfig, shard: int) -> list[int]:
    """Positions, among those of every batch, that this replay rank fills. Pure.

    A queue takes its turn; a memory has as many of them as its environments are of all, in any part of the batch, so
    that every env_step of the run is sampled equally often.
    """
    positions, shards = batch_positions(config), config.ranks.replay
    if not config.algorithm.uses_replay:
        return list(range(shard, positions, shards))
    owners = _interleaved(positions, tuple(len(shard_envs(config, one)) for one in range(shards)))
    return [position for position, owner in enumerate(owners) if owner == shard]


@lru_cache
def _interleaved(count: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """`count` indices of `weights`, each in proportion to its weight, in every beginning as nearly as possible."""
    given, total = [0] * len(weights), sum(weights)
    owners = []
    for place in range(count):
        owners.append(max(range(len(weights)), key=lambda index: weights[index] * (place + 1) - given[index]))
        given[owners[-1]] += total
    return tuple(owners)


def part_positions(config: RunConfig, shard: int, learner: int) -> list[int]:
    """Positions that a replay rank fills for one learner. Pure."""
    mine = share(batch_positions(config), config.ranks.learners, learner)
    return [position for position in shard_positions(config, shard) if position in mine]


def part_layout(
    config: RunConfig, env: EnvSpec, spec: TrajectorySpec, shard: int, learner: int
) -> TrajectoryLayout:
    """Layout of a replay rank's part of a learner's batch: its trajectories, or samples, side by side. Pure."""
    return TrajectoryLayout(batch_spec(config, env, spec, len(part_positions(config, shard, learner))))


def batch_spec(config: RunConfig, env: EnvSpec, spec: TrajectorySpec, positions: int) -> TrajectorySpec:
    """What so many positions of a batch consist of, where actors send trajectories of `spec`. Pure."""
    algorithm = config.algorithm
    if not isinstance(algorithm, OffPolicyConfig):
        return replace(spec, num_envs=spec.num_envs * positions)
    if not algorithm.sequence_steps:
        return transition_spec(env, positions)
    standard = {field.name for field in (*trajectory_spec(env, 1, 1).fields, PRIORITY)}
    stored = tuple(field for field in spec.fields if field.name not in standard)
    return sequence_spec(env, algorithm.sequence_steps, positions, stored)
