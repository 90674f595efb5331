"""What holds a run up: who waits for whom.

Ranks work at the same time, so the one that waits least is the one that the others wait for. Of its time the part of
the run with the largest share is the bottleneck, and the largest hop in it the place. Where every rank waits for a good
part of the time, they either take turns (their work adds up to the time) or all wait for messages; then the age of
what is trained on tells at which end: data that are as old as they may be have waited for the learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcrl.diagnose.advice import Change
from hpcrl.diagnose.faster import faster
from hpcrl.diagnose.times import ACTING, LEARNING, PARTS, RankTime
from hpcrl.diagnose.view import CannotTell, View

FEWEST_UPDATES, SHORTEST_S = 5, 1.0
"""Less is the start of the run, not its pace."""
MOSTLY = 0.75
"""Share of its time in which a rank works, from where on the others wait for it: it has hardly time to wait itself."""
IN_TURN = 0.75
"""Sum of what the busiest rank of each role works: from here on they take turns, and work is what holds them up."""
MOVING = ("transport", "queue", "reduction")
"""Parts of which the bytes that travel are evidence."""
WORTH_A_WORD = 0.1
"""Share of the time; less is how ranks are never quite in step."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The part of a run that the others wait for."""

    part: str
    """One of times.PARTS."""
    hop: str
    rank: str
    """Role and role_rank, as in "actor 0"."""
    share: float
    """Of the rank's time, in that part."""
    evidence: list[str]
    """Sentences: what every kind of rank did with its time."""
    change: Change
    hops: dict[str, float]
    """hop -> share of the rank's time, largest first"""


def find_bottleneck(view: View) -> Bottleneck:
    """The part that holds the run up. Raises CannotTell for a run that is too short, or has no times yet."""
    view.need_updates(FEWEST_UPDATES)
    ranks = view.times
    if not ranks:
        raise CannotTell("no times are written yet: the first come after some seconds, or at the end")
    if (longest := max(rank.wall_s for rank in ranks)) < SHORTEST_S:
        raise CannotTell(f"its times are of {longest:.1f} s; {SHORTEST_S:g} s are needed")
    groups = [[rank for rank in ranks if rank.has(roles)] for roles in (ACTING, ("replay",), LEARNING)]
    busiest = [max(group, key=lambda rank: rank.busy_share) for group in groups if group]
    if not busiest:
        raise CannotTell("no times of actors, replay ranks or learners are written yet")
    critical, shares, how = _held_up_by(view, busiest)
    part, hop = _largest(shares)
    share = sum(shares.get(one, 0.0) for one in PARTS[part])
    evidence = [f"{how}; {part} takes {_percent(share)}, {hop} alone {_percent(shares.get(hop, 0.0))}"]
    others = {rank.world_rank: rank for rank in busiest if rank is not critical}
    evidence += [_sentence(rank) for rank in others.values()]
    evidence += _late_learner(ranks, critical) + crowded(view)
    if part in MOVING:
        evidence += _traffic(view)
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    change = faster(view, part, hop, critical, ranks)
    return Bottleneck(part, hop, critical.name, share, evidence, change, ordered)


def _held_up_by(view: View, busiest: Sequence[RankTime]) -> tuple[RankTime, dict[str, float], str]:
    """Which rank, its shares of the time to choose among, and how that is known."""
    critical = max(busiest, key=lambda rank: rank.busy_share)
    works = _percent(critical.busy_share)
    if critical.busy_share >= MOSTLY:
        return critical, critical.busy, f"{critical.name} waits least: it works {works} of its time"
    together = {rank.world_rank: rank.busy_share for rank in busiest}
    if sum(together.values()) >= IN_TURN:
        critical = max(busiest, key=lambda rank: max(rank.busy.values(), default=0.0))
        return critical, critical.busy, f"the ranks work in turn, none more than {works} of the time"
    critical, how = _where_they_wait(view, busiest)
    return critical, {**critical.busy, **critical.waiting}, how


def _largest(shares: dict[str, float]) -> tuple[str, str]:
    """The part with the largest share, and its largest hop."""
    parts = {part: sum(shares.get(hop, 0.0) for hop in hops) for part, hops in PARTS.items()}
    part = max(parts, key=lambda name: parts[name])
    return part, max(PARTS[part], key=lambda hop: shares.get(hop, 0.0))


def _where_they_wait(view: View, busiest: Sequence[RankTime]) -> tuple[RankTime, str]:
    """Nobody has much to do: at which end of the way the messages are late."""
    acting, learning = busiest[0], busiest[-1]
    lag, bound = view["updates"]["lag_mean"], float(view.get("lag.max_lag", 0))
    mean = float(np.nanmean(lag)) if np.isfinite(lag).any() else 0.0
    if len(view["replay"]) or bound == 0:
        late = max((acting, learning), key=lambda rank: max(rank.waiting.values(), default=0.0))
        return late, "every rank waits most of its time, for messages and not for work"
    late = learning if mean > bound / 2 else acting
    side = "data wait for the learner" if late is learning else "the learner waits for data"
    return late, (
        f"every rank waits most of its time, for messages and not for work, and {side} (mean lag {mean:.2f} of "
        f"lag.max_lag={bound:g})"
    )


def _sentence(rank: RankTime) -> str:
    waits = max(rank.waiting, key=lambda hop: rank.waiting[hop], default="")
    works = max(rank.busy, key=lambda hop: rank.busy[hop], default="")
    text = f"{rank.name} works {_percent(rank.busy_share)} of its time"
    text += f", {_percent(rank.busy[works])} in {works}" if works else ""
    return text + (f", and waits {_percent(rank.waiting[waits])} in {waits}" if waits else "")


def _late_learner(ranks: Sequence[RankTime], critical: RankTime) -> list[str]:
    """Whether the other learners wait in sums for the one that is the bottleneck."""
    others = [rank for rank in ranks if rank.has(LEARNING) and rank is not critical]
    if not critical.has(LEARNING) or not others:
        return []
    waited = float(np.mean([rank.share("reducer.wait") for rank in others])) - critical.share("reducer.wait")
    who = "the other learner waits" if len(others) == 1 else "the other learners wait"
    return [f"{who} {_percent(waited)} more of the time in sums for it"] if waited > WORTH_A_WORD else []


def _traffic(view: View) -> list[str]:
    """What most bytes travel as, by the last row of each edge."""
    last = {(row["stream"], row["source"], row["dest"]): row for row in view["edges"]}
    if not last:
        return []
    totals: dict[bytes, list[float]] = {}
    for (stream, _, _), row in last.items():
        total = totals.setdefault(bytes(stream), [0.0, 0.0, 0.0])
        for place, name in enumerate(("bytes", "messages", "wait_s")):
            total[place] += float(np.nan_to_num(row[name]))
    stream, (nbytes, messages, wait_s) = max(totals.items(), key=lambda item: item[1][0])
    seconds = max(float(row["time_s"]) for row in last.values())
    text = f"most bytes travel as {stream.decode()}: {nbytes / 1e6:.3g} MB in {messages:,.0f} messages"
    text += f", {nbytes / 1e6 / seconds:.3g} MB/s" if seconds > 0 else ""
    return [text + (f"; the senders waited {wait_s:.1f} s" if wait_s else "")]


def crowded(view: View) -> list[str]:
    """Nodes on which ranks have to share cores: a rank more would take its time from the others."""
    seats, found = view["ranks"], []
    for node in np.unique(seats["node"]):
        here = seats[seats["node"] == node]
        cores = set().union(*(_cores(bytes(row["cores"]).decode()) for row in here))
        number = len(np.unique(here["world_rank"]))
        if cores and number > len(cores):
            name = bytes(node).decode()
            found.append(
                f"{number} ranks share {len(cores)} cores on {name}: times there hold waiting for a core"
            )
    return found


def _cores(ranges: str) -> set[int]:
    """Of ranges as in "0-2,5". Pure."""
    cores: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
