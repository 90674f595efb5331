"""What would make the bottleneck wider: one change for each part of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hpcrl.diagnose.advice import Change, allowed, rounded, setting
from hpcrl.diagnose.times import LEARNING, RankTime
from hpcrl.diagnose.view import View

MOST_MORE = 2.0
"""Ranks are at most doubled at a time: what is next in line is not known beyond that."""
_THREE_RANKS = Change(
    "hpcrl run RECIPE --ranks 3: one process takes turns; three act and learn at the same time"
)


def faster(view: View, part: str, hop: str, critical: RankTime, ranks: Sequence[RankTime]) -> Change:
    """The change for a bottleneck in `hop` of `part`, on rank `critical` of `ranks`. Pure."""
    make = _BY_PART[part]
    changes = make(view, hop, critical, ranks)
    return allowed(view.config, [*changes, _longer(view, "fewer, larger messages and batches")])


def _acting(view: View, hop: str, critical: RankTime, ranks: Sequence[RankTime]) -> list[Change]:
    """Environments or inference: more ranks that act, as many as the learners could keep busy with."""
    if view.one_process and not view.synchronous:
        return [_THREE_RANKS]
    now, groups = int(view.get(view.acting_key, 1)), int(view.get("env.num_groups", 1))
    learners = [rank.busy_share for rank in ranks if rank.has(LEARNING) and rank is not critical]
    learner = 0.0 if view.synchronous else max(learners, default=0.0)
    wanted = max(now + 1, math.ceil(now * min(MOST_MORE, 1 / max(learner, 0.1))))
    more = min(wanted, int(view.get("env.num_envs", 1)) // groups)
    changes: list[Change] = []
    if more > now:
        room = "" if view.synchronous else f"; the learners work {100 * learner:.0f} % of their time"
        changes = [setting(view.acting_key, more, f"{more - now} more, on cores of their own{room}")]
    if hop == "env.recv" and view.get("env.engine") == "envpool":
        changes.append(setting("env.num_groups", groups + 1, "one steps while the policy serves the others"))
    if view.get("env.engine") == "gymnasium":
        changes.append(setting("env.vectorization", "async", "a process for each environment"))
    return changes


def _transport(view: View, hop: str, critical: RankTime, ranks: Sequence[RankTime]) -> list[Change]:
    slots, lag = int(view.get("comm.slots", 2)), int(view.get("lag.max_lag", 1))
    every = int(view.get("lag.publish_every_updates", 1))
    changes: list[Change] = []
    if view.get("comm.transport") == "messages":
        changes.append(setting("comm.transport", "auto", "shared memory inside a node"))
    if hop in ("policy.fetch", "publisher.publish"):
        changes.append(setting("lag.publish_every_updates", every + 1, "parameters travel less often"))
    if hop == "slot.wait":
        changes.append(setting("comm.slots", 2 * slots, "more trajectories under way"))
    if hop in ("grant.wait", "batch.wait", "policy.fetch") and not len(view["replay"]):
        changes.append(setting("lag.max_lag", lag + 1, "more under way at a time"))
    if hop == "trajectory.write":
        changes += _acting(view, hop, critical, ranks)
    return changes


def _queue(view: View, hop: str, critical: RankTime, ranks: Sequence[RankTime]) -> list[Change]:
    now = int(view.get("ranks.replay", 1))
    if view.one_process:
        return []
    return [setting("ranks.replay", now + 1, "each holds a share of the trajectories")]


def _learning(view: View, hop: str, critical: RankTime, ranks: Sequence[RankTime]) -> list[Change]:
    if hop == "algorithm.gradient":
        return _acting(view, hop, critical, ranks)
    changes: list[Change] = []
    if hop == "optimizer.step":
        changes += [
            *_fewer_steps(view),
            setting("reduction.shard_optimizer", True, "each learner steps its share"),
        ]
    key = "ranks.workers" if view.synchronous else "ranks.learners"
    if view.one_process and not view.synchronous:
        return [*changes, _THREE_RANKS]
    now = int(view.get(key, 1))
    return [*changes, setting(key, now + 1, "each computes a share of every batch, on cores of its own")]


def _reduction(view: View, hop: str, critical: RankTime, ranks: Sequence[RankTime]) -> list[Change]:
    changes: list[Change] = []
    nodes = {bytes(row["node"]) for row in view["ranks"] if row["role"] in (b"learner", b"worker")}
    if len(nodes) > 1:
        changes.append(setting("reduction.compression", "bf16", "half the bytes between nodes"))
    return [*changes, *_fewer_steps(view)]


def _evaluation(view: View, hop: str, critical: RankTime, ranks: Sequence[RankTime]) -> list[Change]:
    every, now = view.get("evaluation.every_env_steps"), int(view.get("evaluation.episodes", 20))
    if every is not None:
        return [setting("evaluation.every_env_steps", 2 * int(every), "half as often")]
    return [setting("evaluation.episodes", max(now // 2, 1), f"half of {now}")]


def _upkeep(view: View, hop: str, critical: RankTime, ranks: Sequence[RankTime]) -> list[Change]:
    if hop == "checkpoint.write":
        updates, seconds = view.get("checkpoint.every_updates"), view.get("checkpoint.every_seconds")
        if updates is not None:
            return [setting("checkpoint.every_updates", 2 * int(updates), "half as many")]
        return [setting("checkpoint.every_seconds", rounded(2 * float(seconds or 600)), "half as many")]
    if hop == "trace.write":
        return [setting("profile.trace", False, "nothing is traced")]
    if hop in ("records.send", "records.write"):
        interval = float(view.get("storage.flush_interval_s", 1.0))
        return [
            setting("storage.flush_interval_s", rounded(5 * interval), "rows are written in larger pieces")
        ]
    return []


def _fewer_steps(view: View) -> list[Change]:
    steps = int(view.get("algorithm.num_minibatches", 1))
    return (
        [setting("algorithm.num_minibatches", steps // 2, "half as many sums and steps")] if steps > 1 else []
    )


def _longer(view: View, why: str) -> Change:
    """Where nothing else helps: more env_steps between two of whatever is slow."""
    key = "algorithm.batch_size" if len(view["replay"]) else "algorithm.unroll_length"
    return setting(key, 2 * int(view.get(key, 32)), why)


_BY_PART: dict[str, Callable[[View, str, RankTime, Sequence[RankTime]], list[Change]]] = {
    "environment": _acting,
    "inference": _acting,
    "transport": _transport,
    "queue": _queue,
    "learner compute": _learning,
    "reduction": _reduction,
    "evaluation": _evaluation,
    "upkeep": _upkeep,
}
