"""Rules about the replay memory."""

from __future__ import annotations

import math

import numpy as np

from hpcrl.diagnose.advice import allowed, lower_rate, rounded, setting
from hpcrl.diagnose.finding import Finding
from hpcrl.diagnose.view import CannotTell, View

FEWEST_UPDATES = 20
"""What is before the memory is full enough for a first batch is no waiting; with fewer updates it is most of it."""
LARGEST_WAIT = 0.5
"""Of the time: from here on that side is idle more than it works."""


def priorities(view: View) -> Finding | None:
    """Priorities that no memory takes."""
    rows = view["replay"]
    shards = [
        rows["refused_priorities"][rows["role_rank"] == shard] for shard in np.unique(rows["role_rank"])
    ]
    refused = sum(int(own.max()) for own in shards)
    if refused <= 0:
        return None
    what = f"{refused:,} priorities were below zero or not finite and were left out: TD errors are not finite"
    return Finding(what, lower_rate(view.config, "values grow less fast"), {"refused_priorities": refused})


def limiter(view: View) -> Finding | None:
    """One side waits for most of the time, by the ratio that was asked for and not by its speed."""
    if not len(view["replay"]) or view.one_process:
        return None
    view.need_updates(FEWEST_UPDATES)
    actors, learners = _wait_share(view, "actors_wait_s"), _wait_share(view, "learners_wait_s")
    share = max(actors, learners)
    if share <= LARGEST_WAIT:
        return None
    ratio = float(view.get("replay.samples_per_insert", 1.0))
    numbers = {"actors_wait_fraction": actors, "learners_wait_fraction": learners}
    held = f"were held back for {100 * share:.0f} % of the time"
    if actors >= learners:
        what = f"the actors {held}: with replay.samples_per_insert={ratio:g} the learners have to draw more first"
        fewer = setting("replay.samples_per_insert", rounded(ratio * (1 - share)), "as fast as both are")
        return Finding(what, allowed(view.config, [fewer]), numbers)
    what = (
        f"the learners {held}: with replay.samples_per_insert={ratio:g} the actors have to insert more first"
    )
    now = int(view.get("ranks.actors", 1))
    more = setting("ranks.actors", min(2 * now, math.ceil(now / (1 - share))), "so much more is inserted")
    again = setting("replay.samples_per_insert", rounded(ratio / (1 - share)), "as fast as both are")
    return Finding(what, allowed(view.config, [more, again]), numbers)


def _wait_share(view: View, column: str) -> float:
    """Share of the time between the first and the last batch, mean over the shards; below 1."""
    rows = view["replay"]
    if view.trained_s <= 0:
        raise CannotTell("no time has passed between the updates")
    shards = [rows[column][rows["role_rank"] == shard] for shard in np.unique(rows["role_rank"])]
    return min(float(np.mean([own[-1] - own[0] for own in shards])) / view.trained_s, 0.95)
