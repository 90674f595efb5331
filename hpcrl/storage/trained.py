"""What a run was trained on, in a few numbers: the lag of it all, and the replay memory that it came from."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcrl.storage.schema import Rows


def lag_summary(lag: Rows, updates: Rows) -> dict[str, Any] | None:
    """Smallest, mean and largest lag by table `lag`, or, of what was sampled, by `updates`; None without any."""
    lag = lag[lag["env_steps"] > 0]
    if len(lag):
        mean = float(np.average(lag["lag"], weights=lag["env_steps"]))
        return {"min": int(lag["lag"].min()), "mean": mean, "max": int(lag["lag"].max())}
    known = updates[updates["lag_max"] >= 0]
    if not len(known):
        return None
    mean = float(known["lag_mean"].mean())
    return {"min": int(known["lag_min"].min()), "mean": mean, "max": int(known["lag_max"].max())}


def replay_summary(rows: Rows) -> dict[str, Any] | None:
    """The replay memory, all shards together, after the last batch by table `replay`; None where there was none."""
    if not len(rows):
        return None
    attempt = rows[rows["attempt"] == rows["attempt"].max()]
    last = [attempt[attempt["role_rank"] == shard][-1] for shard in np.unique(attempt["role_rank"])]
    names = ("size", "inserted", "sampled", "stale_updates", "refused_priorities")
    found: dict[str, Any] = {name: int(sum(row[name] for row in last)) for name in names}
    for name in ("actors_wait_s", "learners_wait_s"):
        found[name] = float(np.mean([row[name] for row in last]))
    return found | {"shards": len(last), "samples_per_insert": found["sampled"] / max(found["inserted"], 1)}


def replay_text(found: dict[str, Any]) -> str:
    """The same on one line, for a person. Pure."""
    shards = f" in {found['shards']} shards" if found["shards"] > 1 else ""
    text = (
        f"{found['size']:,} of {found['inserted']:,} env_steps{shards}, {found['samples_per_insert']:.2f} samples per "
        f"insert; learners waited {found['learners_wait_s']:.1f} s for actors, actors {found['actors_wait_s']:.1f} s "
        "for learners"
    )
    if found["refused_priorities"]:
        text += f"; {found['refused_priorities']:,} priorities below zero or not finite"
    return text
