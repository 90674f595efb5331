"""Memory, checkpoints, the time they need before the end of a job, and its cost. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcrl.bench.plan.costs import Calibration
from hpcrl.bench.plan.model import Forecast
from hpcrl.config import RunConfig

_LEAVE_S = 10.0
"""For the ranks to leave, after everything is saved."""
_PART_BYTES = 8192
"""Of a part of a checkpoint with next to nothing in it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a split needs beside cores."""

    resident_bytes: dict[str, float]
    """RAM of one rank of each role, what it shares with others counted."""
    node_bytes: float
    """RAM of the fullest node."""
    checkpoint_bytes: float
    """Of one set."""
    kept_bytes: float
    """Of all sets that stay."""
    save_s: float
    """From the decision to a complete set."""
    margin_s: float
    """checkpoint.margin_s that is enough."""
    signal_lead_s: int
    """How long before the limit Slurm's signal should come (signal_lead_s of a site profile)."""
    node_hours: float
    """For budget.env_steps, with one start."""
    hours: float


def sizes(chosen: Forecast, cal: Calibration, nodes: int) -> Sizes:
    """Of a split on so many nodes."""
    config, replay_bytes = chosen.config, cal.bytes.get("replay_bytes", 0.0)
    counts = role_counts(config)
    resident = {role: cal.bytes.get(f"resident/{role}", 0.0) for role in counts}
    if chosen.num_ranks == 1:
        largest = max(resident.values())
        total = largest + replay_bytes
        resident = {"+".join(counts): total}
    else:
        if "replay" in resident:
            resident["replay"] += replay_bytes / counts["replay"]
        total = sum(resident[role] * count for role, count in counts.items())
    checkpoint = checkpoint_bytes(config, cal)
    save_s = cal.save_s
    margin_s = math.ceil(save_s + chosen.round_s) + _LEAVE_S
    seconds = cal.start_s + config.budget.env_steps / chosen.env_steps_per_s
    return Sizes(
        resident_bytes=resident,
        node_bytes=total / nodes,
        checkpoint_bytes=checkpoint,
        kept_bytes=checkpoint * (config.checkpoint.keep + config.checkpoint.keep_best),
        save_s=save_s,
        margin_s=margin_s,
        # the clock of the run is to come first; the signal is for what ends a job before its limit
        signal_lead_s=math.ceil(margin_s + save_s),
        node_hours=nodes * seconds / 3600,
        hours=seconds / 3600,
    )


def role_counts(config: RunConfig) -> dict[str, int]:
    """Ranks of each role."""
    ranks = config.ranks
    if config.scheme == "synchronous":
        return {"worker": ranks.workers}
    return {"actor": ranks.actors, "replay": ranks.replay, "learner": ranks.learners}


def checkpoint_bytes(config: RunConfig, cal: Calibration) -> float:
    """Of one set: every rank's part. That of a replay memory is as large from the beginning on."""
    found = cal.bytes.get("checkpoint/manifest", 0.0)
    for role, count in role_counts(config).items():
        part = cal.bytes.get(f"checkpoint/{role}", 0.0)
        # what they hold is divided among them; that of a learner is with the first one
        found += part + (count - 1) * min(part, _PART_BYTES)
    return found
