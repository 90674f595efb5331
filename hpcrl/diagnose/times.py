"""Where the time of each rank went, as far as it tells who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcrl.config.hops import HOPS
from hpcrl.storage.schema import Rows

ACTING, LEARNING = ("actor", "worker"), ("learner", "worker")
"""Roles that step environments, and those that update."""

PARTS: dict[str, tuple[str, ...]] = {
    "environment": ("env.send", "env.recv"),
    "inference": ("algorithm.act", "algorithm.first_priorities"),
    "transport": (
        "policy.fetch",
        "trajectory.write",
        "stream.send",
        "publisher.publish",
        "grant.wait",
        "slot.wait",
        "batch.wait",
    ),
    "queue": ("replay.insert", "replay.sample", "replay.update_priorities"),
    "learner compute": ("algorithm.update", "algorithm.gradient", "optimizer.step"),
    "reduction": (
        "reducer.mean_gradients",
        "reducer.sum_counts",
        "reducer.wait",
        "learners.vote",
        "learners.meet",
    ),
    "evaluation": ("evaluation", "models.store"),
    "upkeep": ("records.send", "records.write", "checkpoint.write", "trace.write", "role.loop"),
}
"""Part of a run -> its hops."""
PART_OF = {hop: part for part, hops in PARTS.items() for hop in hops}

_WORK_ALTHOUGH_WAITING = ("policy.fetch", "learners.vote")
"""The version was published before the grant left, and who is early to a vote waits in reducer.wait: what is left in
these is the way of the message, not another rank's work."""


@dataclass(frozen=True, slots=True)
class RankTime:
    """One rank (process), all of its roles together, over a stretch of the attempt."""

    world_rank: int
    roles: tuple[tuple[str, int], ...]
    """(role, role_rank) of each"""
    own_s: dict[str, float]
    """hop -> s that were this hop's alone"""
    wall_s: float
    """from the first work on"""

    @property
    def name(self) -> str:
        """Its role, or what it does where it has several."""
        return f"{self.roles[0][0]} {self.roles[0][1]}" if len(self.roles) == 1 else "the one process"

    def has(self, roles: tuple[str, ...]) -> bool:
        """Whether it has one of these roles."""
        return any(role in roles for role, _ in self.roles)

    def share(self, *hops: str) -> float:
        """Of its time, in these hops."""
        return sum(self.own_s.get(hop, 0.0) for hop in hops) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def busy(self) -> dict[str, float]:
        """hop -> share of the time, of the hops in which it waits for no other rank's work."""
        return {hop: self.share(hop) for hop in self.own_s if is_work(hop)}

    @property
    def waiting(self) -> dict[str, float]:
        """hop -> share of the time, of the others."""
        return {hop: self.share(hop) for hop in self.own_s if not is_work(hop) and hop in PART_OF}

    @property
    def busy_share(self) -> float:
        """Of its time, in which it worked."""
        return sum(self.busy.values())


def is_work(hop: str) -> bool:
    """Whether a rank in this hop waits for no other rank's work. Pure."""
    return hop in PART_OF and (HOPS[hop].kind != "wait" or hop in _WORK_ALTHOUGH_WAITING)


def rank_times(timers: Rows, seats: Rows, trained_from_s: float) -> list[RankTime]:
    """Times of every rank of one attempt, by tables `timers` and `ranks`, best from when it trained steadily. Pure.

    Times are cumulative; where there are rows of a moment after `trained_from_s` (by the writer's clock), what was
    before the first such moment is left out, if that leaves half of the time: the first batches compile and warm up.
    """
    placed = {_role(row): int(row["world_rank"]) for row in seats}
    found: dict[int, list[tuple[str, int]]] = {}
    for place, role in enumerate(sorted({_role(row) for row in timers})):
        found.setdefault(placed.get(role, -1 - place), []).append(role)
    ranks = [
        _rank_time(rank, roles, _rows_of(timers, roles), trained_from_s)
        for rank, roles in sorted(found.items())
    ]
    return [rank for rank in _without_waits_for_data(ranks) if rank.wall_s > 0]


def _role(row: Rows) -> tuple[str, int]:
    return bytes(row["role"]).decode(), int(row["role_rank"])


def _rows_of(timers: Rows, roles: list[tuple[str, int]]) -> Rows:
    mine = [(timers["role"] == role.encode()) & (timers["role_rank"] == index) for role, index in roles]
    return timers[np.any(mine, axis=0)]


def _rank_time(world_rank: int, roles: list[tuple[str, int]], rows: Rows, trained_from_s: float) -> RankTime:
    # files that do not say how old the process was have rows of one moment, its end
    age_s = np.where(np.isfinite(rows["age_s"]), rows["age_s"], rows["time_s"].max())
    end_s = float(age_s.max())
    after = _own_times(rows[age_s == end_s])
    start_s = after.pop("start", 0.0)
    steady = age_s[(rows["time_s"] >= trained_from_s) & (age_s < (start_s + end_s) / 2)]
    from_s = float(steady.min()) if len(steady) else start_s
    before = _own_times(rows[age_s == from_s])
    own_s = {hop: seconds - before.get(hop, 0.0) for hop, seconds in after.items()}
    return RankTime(world_rank, tuple(roles), own_s, end_s - from_s)


def _own_times(rows: Rows) -> dict[str, float]:
    """hop -> s that were its own, over the roles of a rank, from the rows of one moment."""
    found: dict[str, float] = {}
    for row in rows:
        hop = bytes(row["hop"]).decode()
        if hop not in HOPS or HOPS[hop].kind != "span":
            found[hop] = found.get(hop, 0.0) + _own_s(hop, row, rows[rows["role"] == row["role"]])
    return found


def _own_s(hop: str, row: Rows, role: Rows) -> float:
    """Of a file that has no own times: without what is known to lie within."""
    if np.isfinite(row["own_s"]):
        return float(row["own_s"])
    inner = [name.encode() for name in HOPS if hop in HOPS[name].within]
    return float(row["seconds"]) - float(role["seconds"][np.isin(role["hop"], inner)].sum())


def _without_waits_for_data(ranks: list[RankTime]) -> list[RankTime]:
    """What every learner waits for inside sums is no other learner's lateness, but the way of the data: reduction."""
    learners = [rank for rank in ranks if rank.has(LEARNING)]
    if len(learners) < 2:
        return ranks
    least = min(rank.own_s.get("reducer.wait", 0.0) for rank in learners)
    return [_moved(rank, least) if rank in learners else rank for rank in ranks]


def _moved(rank: RankTime, seconds: float) -> RankTime:
    own_s = dict(rank.own_s)
    own_s["reducer.wait"] = own_s.get("reducer.wait", 0.0) - seconds
    own_s["reducer.mean_gradients"] = own_s.get("reducer.mean_gradients", 0.0) + seconds
    return RankTime(rank.world_rank, rank.roles, own_s, rank.wall_s)
