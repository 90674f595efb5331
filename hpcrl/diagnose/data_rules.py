"""Rules about the data and the run itself: who gave them, what got lost, whether the numbers hold together."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from hpcrl.config import ExitCode
from hpcrl.diagnose.advice import Change, allowed, check_env, setting
from hpcrl.diagnose.finding import Finding
from hpcrl.diagnose.view import CannotTell, View
from hpcrl.storage.health import FEWEST_ACTORS, FEWEST_EPISODES, last_returns, odd_actors

FEWEST_ENDS = 50
"""Episodes that must have ended before their reset steps are counted."""
LEAST_RESETS = 0.5
"""Reset steps for an episode that ended: each has one, less those that are still to be trained on."""
LARGEST_DROPPED = 0.01
"""Of the trajectories: it is always those of slow environments, so a hundredth of all may be all of some."""
LEAST_OF_FAIR = 0.75
"""Of an actor's fair share of the trained env_steps; chance alone stays within a few percent."""
FEWEST_TRAJECTORIES = 30
"""Of an actor with a fair share, before shares are compared."""
STALL_FACTOR, STALL_S = 20, 60.0
"""An update that is so many times the usual interval overdue, and so long, will not come by itself."""


def weights(view: View) -> Finding | None:
    """Learners that hold different parameters."""
    rows = view["learners"]
    last = rows[rows["update"] == rows["update"].max()] if len(rows) else rows
    if len(np.unique(last["weights_sha256"])) < 2:
        return None
    what = f"the learners hold different weights at update {int(last['update'][0])}: they were not trained in step"
    return Finding(
        what, setting("comm.debug", True, "compares each sum with the other learners' before it runs")
    )


def lag_bound(view: View) -> Finding | None:
    """Data older than the contract allows."""
    bound, oldest = view.get("lag.max_lag"), view["lag"]["lag"][view["lag"]["env_steps"] > 0]
    if bound is None or not len(oldest) or oldest.max() <= bound:
        return None
    what = f"env_steps of lag {int(oldest.max())} were trained on, with lag.max_lag={bound}"
    return Finding(what, Change(f"hpcrl audit {view.run}: names the rows"), {"lag_max": int(oldest.max())})


def reset_steps(view: View) -> Finding | None:
    """Ends of episodes without the reset step that follows each: what is trained on crosses them."""
    updates, ended = view["updates"], len(view["episodes"])
    fresh = updates[(updates["batch_use"] == 1) & (updates["valid_fraction"] > 0)]
    if view.get("algorithm.name") is None or len(view["replay"]) or not len(fresh):
        return None
    if ended < FEWEST_ENDS:
        raise CannotTell(f"{ended} episodes have ended; {FEWEST_ENDS} are needed")
    env_steps = np.diff(fresh["env_steps"], prepend=0)[1:]
    invalid = float((env_steps * (1 / fresh["valid_fraction"][1:] - 1)).sum())
    if invalid >= LEAST_RESETS * ended:
        return None
    what = f"{ended:,} episodes ended, but only {invalid:,.0f} env_steps were marked as reset steps (valid=False)"
    change = Change(f"{check_env(view.config)}: the environment resets in another way than it says")
    return Finding(what, change, {"episodes": ended, "reset_steps": invalid})


def odd_actor(view: View) -> Finding | None:
    """An actor whose returns are not like its peers'."""
    returns = last_returns(view["episodes"])
    if int(view.get(view.acting_key, 1)) < FEWEST_ACTORS:
        return None
    if sum(len(one) >= FEWEST_EPISODES for one in returns.values()) < FEWEST_ACTORS:
        raise CannotTell(f"fewer than {FEWEST_ACTORS} actors have ended {FEWEST_EPISODES} episodes each")
    odd = odd_actors(returns)
    if not odd:
        return None
    worst = max(odd, key=lambda one: abs(one.score) if math.isfinite(one.score) else math.inf)
    role = b"worker" if view.synchronous else b"actor"
    seats = view["ranks"]
    node = seats["node"][(seats["role"] == role) & (seats["role_rank"] == worst.actor)]
    where = f" on {bytes(node[0]).decode()}" if len(node) else ""
    own = np.unique(view["episodes"]["env_index"][view["episodes"]["actor"] == worst.actor])
    change = Change(
        f"{check_env(view.config)}{where}: try environments {own.min()} to {own.max()} there, which it steps"
    )
    return Finding("; ".join(map(str, odd)), change, {"actors": [one.actor for one in odd]})


def dropped(view: View) -> Finding | None:
    """Trajectories that were dropped as too old: those of slow environments."""
    shares = [one for one in view.shares if one["dropped"]]
    lost = sum(one["dropped"] for one in shares)
    rows = view["trajectories"]
    trained = len(np.unique(rows[["collected_in", "actor", "grant"]]))
    if not lost or lost <= LARGEST_DROPPED * (lost + trained):
        return None
    worst = max(shares, key=lambda one: one["dropped"])
    what = (
        f"{lost:,} of {lost + trained:,} trajectories were dropped as too old (lag.overdue=drop), most of actor "
        f"{worst['actor']}: it gave {100 * worst['trained_fraction']:.1f} % of the env_steps instead of its "
        f"{100 * worst['fair_fraction']:.1f} %. What is slow is missing from training"
    )
    change = setting("lag.overdue", "wait", "nothing is lost then; the learners wait for the slowest")
    return Finding(what, allowed(view.config, [change]), {"dropped": lost, "trained": trained})


def uneven(view: View) -> Finding | None:
    """An actor that is trained on less than its environments are, though nothing was dropped."""
    if len(view.shares) < 2 or any(one["dropped"] for one in view.shares):
        return None
    rows = view["trajectories"]
    trained = len(np.unique(rows[["collected_in", "actor", "grant"]]))
    if trained < FEWEST_TRAJECTORIES * len(view.shares):
        raise CannotTell(
            f"{trained} trajectories of {len(view.shares)} actors; {FEWEST_TRAJECTORIES} of each are needed"
        )
    worst = min(view.shares, key=lambda one: one["trained_fraction"] / one["fair_fraction"])
    ratio = worst["trained_fraction"] / worst["fair_fraction"]
    if ratio >= LEAST_OF_FAIR:
        return None
    what = (
        f"actor {worst['actor']} gave {100 * worst['trained_fraction']:.1f} % of the env_steps that were trained on, "
        f"but steps {100 * worst['fair_fraction']:.1f} % of the environments: what is slow counts less"
    )
    fewer = max(int(view.get("lag.max_lag", 1)) - 1, 0)
    changes = [
        setting(
            "algorithm.batch_trajectories", len(view.shares), "an update takes as many as there are actors"
        ),
        setting("lag.max_lag", fewer, "fast actors get less far ahead"),
    ]
    return Finding(what, allowed(view.config, changes), {"share_of_fair": ratio})


def crashes(view: View) -> Finding | None:
    """Actors that died while the run went on (faults.actor_death=continue)."""
    died = view["events"][view["events"]["kind"] == b"actor_died"]
    if not len(died):
        return None
    who = ", ".join(f"actor {row['role_rank']} {bytes(row['text']).decode(errors='replace')}" for row in died)
    what = f"{len(died)} of {view.get('ranks.actors')} actors died, and what they had is missing since: {who}"
    change = Change(f"{check_env(view.config)}: alone, on that node; then resume, which has all actors again")
    return Finding(what, change, {"died": len(died)})


def disk(view: View) -> Finding | None:
    """Results that could not be written for a time."""
    refused = view["events"][view["events"]["kind"] == b"disk_refuses"]
    if not len(refused):
        return None
    said = bytes(refused["text"][0]).decode(errors="replace")
    what = f"the disk refused the result file {len(refused)} times: {said}"
    return Finding(what, Change(f"df -h {view.run}: make room there, or put storage.runs_dir elsewhere"))


def ended(view: View) -> Finding | None:
    """A run that was killed or failed."""
    if view.status["status"] not in ("killed", "failed"):
        return None
    if view.status.get("exit_code") == ExitCode.LEARNING_FAILED:
        return None  # rule nonfinite says why
    what = f"the run {'was killed' if view.status['status'] == 'killed' else 'failed'}: {view.status.get('cause')}"
    return Finding(what, Change(f"hpcrl run {view.run} --resume must: goes on from its newest checkpoint"))


def damaged(view: View) -> Finding | None:
    """A result file that cannot be read."""
    if not view.damage:
        return None
    return Finding(
        view.damage, Change(f"hpcrl verify {view.run}: what is damaged; then hpcrl salvage {view.run}")
    )


def stalled(view: View) -> Finding | None:
    """A run whose environments go on, but which makes no updates any more."""
    updates, episodes = view["updates"]["time_s"], view["episodes"]["time_s"]
    if view.status["status"] != "running" or not len(updates) or not len(episodes):
        return None
    usual = float(np.median(np.diff(updates))) if len(updates) > 1 else 0.0
    since = float(episodes.max() - updates[-1])
    if not since > max(STALL_S, STALL_FACTOR * usual):
        return None
    what = f"episodes go on for {since:.0f} s since the last update; updates came every {usual:.2g} s"
    change = setting(
        "faults.stall_timeout_s", round(since / 2), "the rank that is stuck is named and the job ends"
    )
    return Finding(what, allowed(view.config, [change]), {"since_s": since})


def software(view: View) -> Finding | None:
    """Attempts that ran with different packages."""
    versions = [(head.attempt, head.provenance.get("versions", {})) for head in view.heads]
    for (first, before), (second, after) in pairwise(versions):
        changed = [
            f"{name} {before[name]} -> {after.get(name)}"
            for name in before
            if before[name] != after.get(name)
        ]
        if changed:
            what = f"attempt {second} ran with other packages than attempt {first}: {', '.join(changed)}"
            name, number = changed[0].split(" -> ")[0].rsplit(" ", 1)
            return Finding(what, Change(f"pip install {name}=={number}: or the curve is of two programs"))
    return None
