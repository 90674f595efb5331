"""Who is who: the partition of the world into roles. Pure; no MPI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcrl.config import ConfigError, RunConfig

Role = Literal["actor", "replay", "learner", "worker"]


@dataclass(frozen=True, slots=True)
class Placement:
    """One role on one rank."""

    world_rank: int
    role: Role
    role_rank: int


@dataclass(frozen=True, slots=True)
class RankPlan:
    """All placements. With more than one rank, each rank has exactly one role."""

    placements: tuple[Placement, ...]

    def of_rank(self, world_rank: int) -> list[Placement]:
        """Placements of a rank; more than one only in a world of size 1."""
        return [placement for placement in self.placements if placement.world_rank == world_rank]

    def ranks(self, role: Role) -> list[int]:
        """World ranks of a role, in the order of role_rank."""
        return [placement.world_rank for placement in self.placements if placement.role == role]

    @property
    def writer(self) -> int:
        """World rank that writes the results: never a learner in its compute, where there is a choice."""
        return (self.ranks("replay") or self.ranks("worker"))[0]


def resize(config: RunConfig, world_size: int) -> RunConfig:
    """The same run on `world_size` ranks: more or fewer actors (pipeline) or workers (synchronous).

    A pipeline on one rank has one role of each kind, in one process. Raises ConfigError when a role would be empty.
    """
    if world_size == config.world_size:
        return config
    smallest = _smallest(config)
    if world_size < 1 or 1 < world_size < smallest:
        raise ConfigError(
            f"{world_size} ranks are too few for {_request(config)}: use at least {smallest} ranks, "
            "or 1 to run every role in one process"
        )
    ranks = config.ranks.to_dict()
    if config.scheme == "synchronous":
        ranks["workers"] = world_size
    elif world_size == 1:
        ranks |= {"actors": 1, "replay": 1, "learners": 1}
    else:
        ranks["actors"] = world_size - config.ranks.replay - config.ranks.learners
    return config.parse(config.to_dict() | {"ranks": ranks})


def fit(config: RunConfig, world_size: int) -> RunConfig:
    """The configuration for a world that is already there. Raises ConfigError unless it fits or has one rank."""
    if world_size in (1, config.world_size):
        return resize(config, world_size)
    if config.scheme == "synchronous":
        repair = f"set ranks.workers={world_size}"
    elif world_size >= _smallest(config):
        repair = f"set ranks.actors={world_size - config.ranks.replay - config.ranks.learners}"
    else:
        repair = f"ask for fewer replay or learner ranks: with these, use at least {_smallest(config)} ranks"
    raise ConfigError(
        f"{world_size} ranks were started for {_request(config)}; start {config.world_size} ranks, or 1 to run "
        f"every role in one process, or {repair}"
    )


def plan_ranks(config: RunConfig, nodes: Sequence[str]) -> RankPlan:
    """Place the roles; `nodes[r]` is the node of world rank r.

    Deterministic. Ranks are taken node by node, in the order in which the nodes first appear: replay and learner
    ranks alternate on the first nodes, so that shards are beside the learners they serve; actors take the rest.
    Raises ConfigError when the world does not fit.
    """
    config = fit(config, len(nodes))
    if config.scheme == "synchronous":
        return RankPlan(tuple(Placement(rank, "worker", rank) for rank in range(len(nodes))))
    counts = config.ranks
    order: list[tuple[Role, int]] = []
    for index in range(max(counts.replay, counts.learners)):
        if index < counts.replay:
            order.append(("replay", index))
        if index < counts.learners:
            order.append(("learner", index))
    order += [("actor", index) for index in range(counts.actors)]
    if len(nodes) == 1:
        return RankPlan(tuple(Placement(0, role, index) for role, index in order))
    first_seen = {node: position for position, node in reversed(list(enumerate(nodes)))}
    by_node = sorted(range(len(nodes)), key=lambda rank: (first_seen[nodes[rank]], rank))
    return RankPlan(tuple(Placement(rank, *what) for rank, what in zip(by_node, order, strict=True)))


def crowded_nodes(seats: Sequence[dict[str, Any]]) -> list[str]:
    """One sentence for each node on which ranks outnumber the cores they may use. Pure."""
    ranks = Counter(seat["node"] for seat in seats)
    sentences = []
    for node, count in ranks.items():
        cores = {core for seat in seats if seat["node"] == node for core in seat["cores"]}
        if count > len(cores):
            noun = "core" if len(cores) == 1 else "cores"
            sentences.append(f"{count} ranks share {len(cores)} {noun} on {node}")
    return sentences


def share(total: int, parts: int, index: int) -> range:
    """The `index`-th of `parts` nearly equal consecutive shares of range(total); the first ones are larger."""
    base, larger = divmod(total, parts)
    start = index * base + min(index, larger)
    return range(start, start + base + (index < larger))


def _smallest(config: RunConfig) -> int:
    """Ranks of the smallest world of more than one rank: each replay rank needs an actor of its own."""
    if config.scheme == "synchronous":
        return 1
    return 2 * config.ranks.replay + config.ranks.learners


def _request(config: RunConfig) -> str:
    counts = config.ranks
    if config.scheme == "synchronous":
        return f"ranks.workers={counts.workers}"
    return f"ranks.actors={counts.actors} + ranks.replay={counts.replay} + ranks.learners={counts.learners}"
