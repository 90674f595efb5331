"""Where trajectories and batches lie: sizes of the arenas, known to every rank alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcrl.comm.ranks import share
from hpcrl.comm.replay_link import SLOTS
from hpcrl.comm.rows import Arena
from hpcrl.comm.world import World
from hpcrl.config import RunConfig
from hpcrl.data.admission import most_alive
from hpcrl.data.specs import TrajectorySpec
from hpcrl.data.trajectory import TrajectoryLayout


@dataclass(frozen=True, slots=True)
class Arenas:
    """Memory of the pipeline's large messages."""

    trajectories: Arena
    """Owned by the replay ranks: one row per trajectory that was granted and is not trained on yet."""
    batches: Arena
    """Owned by the learners: for each replay rank the two slots of its link."""


def open_arenas(world: World, spec: TrajectorySpec) -> Arenas:
    """Make both. Collective over the world."""
    config = world.config
    rows = slots = 0
    for placement in world.placements:
        if placement.role == "replay":
            rows = trajectory_rows(config, placement.role_rank)
        elif placement.role == "learner":
            slots = SLOTS * config.ranks.replay
    largest = slot_bytes(config, spec)
    return Arenas(Arena(world, rows, TrajectoryLayout(spec).nbytes), Arena(world, slots, largest))


def slot_bytes(config: RunConfig, spec: TrajectorySpec) -> int:
    """Of the largest part of a batch. Pure."""
    pairs = [(s, n) for s in range(config.ranks.replay) for n in range(config.ranks.learners)]
    return max(part_layout(config, spec, shard, learner).nbytes for shard, learner in pairs)


def trajectory_rows(config: RunConfig, shard: int) -> int:
    """Rows that a replay rank can need. Pure."""
    actors = len(range(shard, config.ranks.actors, config.ranks.replay))
    alive = most_alive(
        batch=len(shard_positions(config, shard)),
        max_lag=config.max_lag_when_new,
        actors=actors,
        grants_per_actor=config.comm.slots,
    )
    # those that were offered to an actor that died are not used again
    return alive + (actors * config.comm.slots if config.faults.actor_death == "continue" else 0)


def shard_positions(config: RunConfig, shard: int) -> list[int]:
    """Positions, among the K trajectories of every update, that this replay rank fills. Pure."""
    return list(range(shard, config.batch_trajectories, config.ranks.replay))


def part_positions(config: RunConfig, shard: int, learner: int) -> list[int]:
    """Positions that a replay rank fills for one learner. Pure."""
    mine = share(config.batch_trajectories, config.ranks.learners, learner)
    return [position for position in shard_positions(config, shard) if position in mine]


def part_layout(config: RunConfig, spec: TrajectorySpec, shard: int, learner: int) -> TrajectoryLayout:
    """Layout of a replay rank's part of a learner's batch: its trajectories side by side. Pure."""
    columns = spec.num_envs * len(part_positions(config, shard, learner))
    return TrajectoryLayout(replace(spec, num_envs=columns))
