"""What a recipe asks of the nodes it would run on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcrl.comm.ranks import RankPlan, plan_ranks, share
from hpcrl.config import RunConfig
from hpcrl.launch.memory import replay_bytes

if TYPE_CHECKING:
    from hpcrl.data.specs import EnvSpec, TrajectorySpec


def needs(config: RunConfig, nodes: Sequence[str]) -> list[dict[str, Any]]:
    """One record per node: {"node", "ranks", "roles", "shared_bytes", "replay_bytes", "replay_share", "env_threads"}.

    `nodes[r]` is that of rank r. replay_bytes: of replay memories; replay_share: of a node's memory that they may take.

    Makes an environment and a network, to know the size of what travels. MPI must have started, or not start by itself.
    Raises ConfigError where the run would be refused. Local.
    """
    from hpcrl.launch.rank import make_specs

    plan = plan_ranks(config, nodes)
    env, spec, num_parameters = make_specs(config, "cuda" if config.ranks.learner_device == "cuda" else "cpu")
    found = []
    for node in dict.fromkeys(nodes):
        here = [
            placement for rank, name in enumerate(nodes) if name == node for placement in plan.of_rank(rank)
        ]
        roles = Counter(placement.role for placement in here)
        found.append(
            {
                "node": node,
                "ranks": list(nodes).count(node),
                "roles": dict(roles),
                "shared_bytes": shared_bytes(config, plan, nodes, node, env, spec, num_parameters),
                "replay_bytes": replay_bytes(config, plan, nodes, node, spec),
                "replay_share": config.replay.max_memory_share,
                "env_threads": env_threads(config) * (roles["actor"] + roles["worker"]),
            }
        )
    return found


def shared_bytes(
    config: RunConfig,
    plan: RankPlan,
    nodes: Sequence[str],
    node: str,
    env: EnvSpec,
    spec: TrajectorySpec,
    num_parameters: int,
) -> int:
    """What the ranks of `node` want to share: trajectories, batches, parameters, gradients. Mail is not counted. Pure.

    Where it is not there, messages are sent instead.
    """
    from hpcrl.comm.node_sum import bucket_ranges, segment_bytes
    from hpcrl.comm.replay_link import SLOTS
    from hpcrl.comm.rows import arena_bytes
    from hpcrl.comm.slices import window_bytes
    from hpcrl.data.trajectory import TrajectoryLayout
    from hpcrl.roles.arenas import slot_bytes, trajectory_rows

    ranks = list(nodes).count(node)
    here = [placement for placement in plan.placements if nodes[placement.world_rank] == node]
    roles = {placement.role for placement in here}
    total = 0
    if config.comm.transport == "auto":
        for placement in here:
            if placement.role == "replay":
                rows = trajectory_rows(config, placement.role_rank)
                total += arena_bytes(ranks, rows, TrajectoryLayout(spec).nbytes)
            elif placement.role == "learner":
                total += arena_bytes(ranks, SLOTS * config.ranks.replay, slot_bytes(config, env, spec))
        if config.scheme == "pipeline" and ("actor" in roles or plan.ranks("learner")[0] in _ranks(here)):
            total += window_bytes(config, num_parameters, len(nodes))
    summing = plan.ranks("learner") or plan.ranks("worker")
    if len(summing) > 1 and config.reduction.form in ("auto", "shared"):
        buckets = len(bucket_ranges(num_parameters, config.reduction.bucket_bytes))
        learners = sum(nodes[rank] == node for rank in summing)
        total += sum(segment_bytes(num_parameters, buckets, learner) for learner in range(learners))
    return total


def _ranks(placements: Sequence[Any]) -> set[int]:
    return {placement.world_rank for placement in placements}


def env_threads(config: RunConfig) -> int:
    """Threads or processes of the environments of one acting rank, beside the rank's own. Pure."""
    env = config.env
    if env.engine == "envpool":
        return env.num_threads * env.num_groups
    if env.engine == "gymnasium" and env.vectorization == "async":
        return len(share(env.num_envs, config.num_acting_ranks, 0))
    return 0
