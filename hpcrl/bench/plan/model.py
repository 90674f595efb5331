"""What a run does per second, from what its parts take: every rank in turn with the others of its node. Pure.

The unit is a round: everything that is done for one new batch. A rank whose work takes longest sets the pace, or a node
whose ranks together compute more than its cores do. Where actors may not run ahead, the roles work one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcrl.bench.cost_model import Machine, link_bytes, predict
from hpcrl.bench.plan.costs import Calibration, Cost
from hpcrl.bench.plan.lag import mean_lag
from hpcrl.comm.ranks import RankPlan, Role, plan_ranks, resize
from hpcrl.config import ConfigError, OffPolicyConfig, RunConfig

_NEXT_TO = 0.98
_LEAST_LEFT = 0.1
"""Of the cores, beside what waiting takes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the ranks would be."""

    nodes: int
    cores_per_node: float
    """That the run has for itself."""
    link_bytes_per_s: float = 1.25e9
    """Of one node, in each direction; of no account on one."""

    def of_ranks(self, count: int) -> list[str]:
        """The node of each rank: blocks of nearly equal size, the first ones larger.

        Raises ConfigError where there are fewer ranks than nodes.
        """
        if count < self.nodes:
            raise ConfigError(f"{count} ranks are too few for {self.nodes} nodes; use at least as many")
        base, larger = divmod(count, self.nodes)
        sizes = [base + (node < larger) for node in range(self.nodes)]
        return [f"node{node}" for node, size in enumerate(sizes) for _ in range(size)]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a split of the ranks would do."""

    config: RunConfig
    num_ranks: int
    env_steps_per_s: float
    round_s: float
    """For one new batch."""
    updates_per_s: float
    limit: str
    """What sets the pace: actors, replay, learners, workers, cores, link, or turns (the roles wait for each other)."""
    lag_mean: float
    """Of an env_step when it is trained on, in updates."""
    busy: dict[str, float]
    """Share of its time that a rank of each role works, or sleeps for its environments."""
    cores_used: float
    """Of all nodes."""


def forecast(config: RunConfig, cal: Calibration, place: Place, num_ranks: int | None = None) -> Forecast:
    """What `config` would do there, on its own ranks; with num_ranks=1 in one process.

    Raises ConfigError where there are fewer ranks than nodes.
    """
    num_ranks = config.world_size if num_ranks is None else num_ranks
    nodes = place.of_ranks(num_ranks)
    plan = plan_ranks(config, nodes)
    times = cal.together if num_ranks > 1 else 1.0
    work = {key: cost.slower(times) for key, cost in rank_work(config, cal, plan, nodes, place).items()}
    round_s, limit = _round(config, work, nodes, place, cal.waiting)
    link_s = _link_s(config, cal, plan, nodes, place)
    if link_s > round_s:
        round_s, limit = link_s, "link"
    # where cores are short, work takes longer, and nobody waits for more of the time than else
    busiest_s = max(cost.span_s for cost in work.values()) if limit == "cores" else round_s
    env_steps = env_steps_per_batch(config, cal)
    uses = config.algorithm.buffer[1]
    busy: dict[str, float] = {}
    for placement in plan.placements:
        share = work[placement.role, placement.role_rank].span_s / round_s
        busy[placement.role] = max(busy.get(placement.role, 0.0), min(share, 1.0))
    return Forecast(
        config=config,
        num_ranks=num_ranks,
        env_steps_per_s=env_steps / round_s,
        round_s=round_s,
        updates_per_s=uses / round_s,
        limit=limit,
        lag_mean=mean_lag(config, env_steps, learners_first=_learners_first(work, limit)),
        busy=busy,
        cores_used=sum(
            cost.cpu_s / round_s + cal.waiting * (1 - cost.span_s / busiest_s) for cost in work.values()
        ),
    )


def preferred(forecasts: Sequence[Forecast]) -> Forecast:
    """The fastest; of those that are next to as fast the first one, which `splits` gives the fewest learners."""
    most = max(one.env_steps_per_s for one in forecasts)
    return next(one for one in forecasts if one.env_steps_per_s >= _NEXT_TO * most)


def env_steps_per_batch(config: RunConfig, cal: Calibration) -> float:
    """env_steps of the budget for each new batch: those trained on, or those that a replay memory takes in for it."""
    if isinstance(config.algorithm, OffPolicyConfig):
        return config.algorithm.batch_size / config.replay.samples_per_insert
    return trajectories_per_batch(config, cal) * _slots(config) * cal.valid_fraction


def trajectories_per_batch(config: RunConfig, cal: Calibration) -> float:
    """Of all acting ranks."""
    if isinstance(config.algorithm, OffPolicyConfig):
        return env_steps_per_batch(config, cal) / (_slots(config) * cal.valid_fraction)
    return config.num_acting_ranks if config.scheme == "synchronous" else config.batch_trajectories


def rank_work(
    config: RunConfig, cal: Calibration, plan: RankPlan, nodes: Sequence[str], place: Place
) -> dict[tuple[Role, int], Cost]:
    """What each role and role_rank does in a round."""
    trajectories = trajectories_per_batch(config, cal)
    acting = _acting(config, cal) * (trajectories / config.num_acting_ranks)
    learning, per_learner = _learning(config, cal, plan, nodes, place), message_cost(config, cal)
    if config.scheme == "synchronous":
        return {("worker", rank): acting + learning + per_learner for rank in range(config.ranks.workers)}
    ranks = config.ranks
    work: dict[tuple[Role, int], Cost] = {}
    for rank in range(ranks.actors):
        work["actor", rank] = acting + per_learner * (trajectories / ranks.actors)
    for rank in range(ranks.replay):
        given = trajectories / ranks.replay
        keeping = cal.insert * given + per_learner * (given + ranks.learners)
        if cal.sample is not None:
            keeping += cal.sample.at(_batch_size(config) / ranks.replay)
        work["replay", rank] = keeping
    for rank in range(ranks.learners):
        work["learner", rank] = learning + per_learner * ranks.replay
    return work


def message_cost(config: RunConfig, cal: Calibration) -> Cost:
    """What is left of the run in one process without its parts: for each end of a message, or for a worker's round."""
    one = resize(config, 1)
    trajectories = trajectories_per_batch(one, cal)
    parts = _acting(one, cal) * trajectories + cal.insert * trajectories
    if cal.update is not None:
        parts += cal.update.at(learner_size(one))
    if cal.sample is not None:
        parts += cal.sample.at(_batch_size(one))
    rest_s = cal.whole.less(parts).cpu_s
    ends = 1.0 if config.scheme == "synchronous" else 2 * trajectories + 2
    return Cost(rest_s, rest_s) * (1 / ends)


def _learners_first(work: dict[tuple[Role, int], Cost], limit: str) -> bool:
    spans = {role: max(cost.span_s for (of, _), cost in work.items() if of == role) for role, _ in work}
    return limit == "learners" or (
        limit == "cores"
        and spans.get("learner", 0.0) > max(spans.get("actor", 0.0), spans.get("replay", 0.0))
    )


def _acting(config: RunConfig, cal: Calibration) -> Cost:
    """Of one trajectory."""
    envs = acting_envs(config)
    cost = cal.collect.at(envs)
    return cost if cal.gradient is None else cost + cal.gradient.at(envs)


def _learning(
    config: RunConfig, cal: Calibration, plan: RankPlan, nodes: Sequence[str], place: Place
) -> Cost:
    """Of one learner, for a new batch, its sums with the others included."""
    update = Cost() if cal.update is None else cal.update.at(learner_size(config))
    summing = plan.ranks("learner") or plan.ranks("worker")
    if len(summing) == 1:
        return update
    where = [nodes[rank] for rank in summing]
    sizes = [where.count(node) for node in dict.fromkeys(where)]
    machine = Machine(link_bytes_per_s=place.link_bytes_per_s)
    nbytes = max(cal.bytes.get("parameters_bytes", 4.0), 4.0)
    more_s = min(one.seconds for one in predict(nbytes, len(sizes), max(sizes), machine) if one.chosen)
    two_s = predict(nbytes, 1, 2, machine)[0].seconds
    sums = cal.reduce + Cost(0.0, max(more_s - two_s, 0.0))
    return update + sums * cal.sums_per_batch + cal.agree * (2 * config.algorithm.buffer[1])


def _round(
    config: RunConfig,
    work: dict[tuple[Role, int], Cost],
    nodes: Sequence[str],
    place: Place,
    waiting: float,
) -> tuple[float, str]:
    """Seconds, and what they depend on."""
    names = {"actor": "actors", "replay": "replay", "learner": "learners", "worker": "workers"}
    if len(nodes) == 1:
        return sum(cost.span_s for cost in work.values()), "turns" if len(work) > 1 else "workers"
    plan = plan_ranks(config, nodes)
    roles = list(dict.fromkeys(placement.role for placement in plan.placements))

    def pace(chosen: Sequence[Role]) -> tuple[float, str]:
        spans = {
            names[role]: max(cost.span_s for (of, _), cost in work.items() if of == role) for role in chosen
        }
        longest_s = max(spans.values())
        spans["cores"] = max(
            _node_s(
                [
                    work[placement.role, placement.role_rank] if placement.role in chosen else Cost()
                    for placement in plan.placements
                    if nodes[placement.world_rank] == node
                ],
                longest_s,
                waiting,
                place.cores_per_node,
            )
            for node in dict.fromkeys(nodes)
        )
        limit = max(spans, key=lambda name: spans[name])
        return spans[limit], limit

    if config.scheme == "pipeline" and in_turns(config):
        phases = [pace([role]) for role in roles]
        return sum(seconds for seconds, _ in phases), "turns"
    return pace(roles)


def _node_s(ranks: Sequence[Cost], longest_s: float, waiting: float, cores: float) -> float:
    """How long the cores of a node take for the work of its ranks, each of which polls while it waits for the others.

    longest_s: span of the busiest rank of all, which never waits; where cores are short, all take longer alike.
    """
    waits = sum(1 - cost.span_s / longest_s for cost in ranks) if longest_s else 0.0
    return sum(cost.cpu_s for cost in ranks) / max(cores - waiting * waits, _LEAST_LEFT * cores)


def in_turns(config: RunConfig) -> bool:
    """Whether actors wait while learners learn."""
    if config.algorithm.uses_replay:
        return config.deterministic
    return config.max_lag_when_new == 0


def _link_s(config: RunConfig, cal: Calibration, plan: RankPlan, nodes: Sequence[str], place: Place) -> float:
    """What goes through the busiest node's link in a round: trajectories, and one vector of parameters to each node."""
    if place.nodes == 1 or config.scheme == "synchronous":
        return 0.0
    trajectories = trajectories_per_batch(config, cal) / config.ranks.actors
    each = cal.bytes.get("trajectory_bytes", 0.0) * config.env.num_envs / config.ranks.actors
    arrivals = dict.fromkeys(nodes, 0.0)
    shards = plan.ranks("replay")
    for rank, actor in enumerate(plan.ranks("actor")):
        shard = shards[rank % len(shards)]
        if nodes[actor] != nodes[shard]:
            arrivals[nodes[shard]] += trajectories * each
    sent = link_bytes("all_gather", cal.bytes.get("parameters_bytes", 0.0), 2)
    return max(sent, *arrivals.values()) / place.link_bytes_per_s


def _slots(config: RunConfig) -> float:
    """env_steps of one trajectory, resets among them."""
    return config.algorithm.unroll_length * config.env.num_envs / config.num_acting_ranks


def acting_envs(config: RunConfig) -> int:
    """Environments of the acting rank that has most."""
    return math.ceil(config.env.num_envs / config.num_acting_ranks)


def learner_size(config: RunConfig) -> float:
    """Of an update: environments' columns of one learner, or samples."""
    if isinstance(config.algorithm, OffPolicyConfig):
        return config.algorithm.batch_size / config.ranks.learners
    if config.scheme == "synchronous":
        return config.env.num_envs / config.ranks.workers
    return config.batch_trajectories * config.env.num_envs / config.ranks.actors / config.ranks.learners


def _batch_size(config: RunConfig) -> int:
    return config.algorithm.batch_size if isinstance(config.algorithm, OffPolicyConfig) else 0
