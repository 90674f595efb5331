"""Who the trained data came from: each actor's share against the share of the environments that it steps.

An actor that is slow, because its environments or episodes are, gives less where the learners do not wait for it
(lag.overdue=drop) or take whoever comes first (batches of fewer trajectories than actors). What it sees is then
under-represented in training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.storage.runlog import AttemptHead, read_heads, read_table
from hpcrl.storage.schema import Rows


def actor_shares(run: Path) -> list[dict[str, Any]]:
    """Of each actor (or synchronous worker) of the last attempt that trained; empty where the file does not say.

    env_steps: trained on, each use of a batch counted. trained_fraction: of all actors' env_steps; fair_fraction: of
    the environments. episodes that ended, and their mean length in env_steps (None without any). dropped: trajectories,
    overdue.
    """
    raw = read_table(run, "trajectories")
    raw = raw[raw["collected_in"] == raw["attempt"]]
    try:
        heads = {head.attempt: head for head in read_heads(run)}
    except OSError:
        return []
    last = heads.get(int(raw["attempt"].max())) if len(raw) else None
    if last is None or not last.config:
        return []
    raw, episodes, events = (
        rows[rows["attempt"] == last.attempt]
        for rows in (raw, read_table(run, "episodes"), read_table(run, "events"))
    )
    trained = np.bincount(raw["actor"], weights=raw["env_steps"])
    return [
        {
            "actor": actor,
            "env_steps": int(trained[actor]) if actor < len(trained) else 0,
            "trained_fraction": float(trained[actor] / trained.sum()) if actor < len(trained) else 0.0,
            "fair_fraction": fair,
            **_episodes(episodes[episodes["actor"] == actor]),
            "dropped": _dropped(events, actor),
        }
        for actor, fair in enumerate(_fair(last))
    ]


def _fair(head: AttemptHead) -> list[float]:
    """Share of the environments that each acting rank steps: as even as possible, the first ones one more."""
    config = head.config
    ranks, total = config["ranks"], int(config["env"]["num_envs"])
    acting = int(ranks["workers"] if config["scheme"] == "synchronous" else ranks["actors"])
    return [(total // acting + (rank < total % acting)) / total for rank in range(acting)]


def _episodes(rows: Rows) -> dict[str, Any]:
    mean = float(rows["episode_length"].mean()) if len(rows) else None
    return {"episodes": len(rows), "mean_episode_length": mean}


def _dropped(events: Rows, actor: int) -> int:
    whose = (events["role"] == b"actor") & (events["role_rank"] == actor)
    return int(events["count"][whose & (events["kind"] == b"dropped_trajectory")].sum())


def shares_text(shares: list[dict[str, Any]]) -> str:
    """One line for a person: how even the shares are, and who is furthest from its own. Pure."""
    if len(shares) < 2:
        return "one actor" if shares else "not recorded"
    ratio = [one["trained_fraction"] / one["fair_fraction"] for one in shares]
    least = shares[int(np.argmin(ratio))]
    dropped = sum(one["dropped"] for one in shares)
    text = f"{min(ratio):.2f} to {max(ratio):.2f} of their fair share of the env_steps"
    if min(ratio) < 0.995:
        text += (
            f"; least: actor {least['actor']} with {100 * least['trained_fraction']:.1f} % "
            f"instead of {100 * least['fair_fraction']:.1f} %"
        )
    return text + (
        f"; {dropped:,} {'trajectory' if dropped == 1 else 'trajectories'} dropped" if dropped else ""
    )
