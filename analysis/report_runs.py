"""What a report says of each run in words: a sentence, what went wrong, where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from sweeps import differences

from hpcrl.storage import find_run
from hpcrl.storage.files import read_json
from hpcrl.storage.shares import shares_text

ORDINARY = frozenset({"started", "finished", "stopped", "checkpoint", "resumed"})
"""kinds of events that need no attention"""


def sentence(label: str, summary: Mapping[str, Any]) -> str:
    """What the run was and came to; `summary`: of `describe`."""
    what = f"{summary['algorithm']} on {summary['env']}, scheme {summary['scheme']}, seed {summary['seed']}"
    took = f"{summary['env_steps']:,} env_steps in {_duration(summary['wall_s'])}"
    attempts = summary["attempts"]
    took += f" and {attempts} attempts" if attempts > 1 else ""
    parts = [f"{label}: {what}: {summary['status']} after {took}"]
    for name, values in (
        ("evaluation", summary["evaluation"]),
        ("training return", summary["training_return"]),
    ):
        if values:
            parts.append(f"{name} {values['mean']:.2f} ± {values['std']:.2f} over {values['n']} episodes")
            break
    if summary["lag"]:
        parts.append(
            f"lag {summary['lag']['min']} to {summary['lag']['max']} updates, mean {summary['lag']['mean']:.2f}"
        )
    return "; ".join(parts) + "."


def overview(labels: Sequence[str], summaries: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row per run: how it stands."""
    return pd.DataFrame(
        [
            {
                "run": label,
                "algorithm": one["algorithm"],
                "env": one["env"],
                "seed": one["seed"],
                "status": one["status"],
                "training return": _moments(one["training_return"]),
                "evaluation": _moments(one["evaluation"]),
                "attempts": one["attempts"],
                "env_steps": one["env_steps"],
                "of budget": _percent(one["env_steps"], one["budget_env_steps"]),
                "updates": one["updates"],
                "wall time": _duration(one["wall_s"]),
                "env_steps/s": one["env_steps_per_s"],
                "actors trained on": shares_text(one["actors"]),
            }
            for label, one in zip(labels, summaries, strict=True)
        ]
    )


def findings(label: str, summary: Mapping[str, Any]) -> list[str]:
    """What a reader must know before trusting the run, a sentence each; empty where nothing is to be said."""
    found = []
    if summary["status"] != "finished":
        cause = f": {summary['cause']}" if summary["cause"] else ""
        found.append(f"{label} is not finished but {summary['status']}{cause}")
    if summary["weights_equal"] is False:
        found.append(f"{label}: the learners' weights differ")
    found += [f"{label}: {text}" for text in summary["odd_actors"]]
    others = {kind: count for kind, count in summary["events"].items() if kind not in ORDINARY}
    if others:
        found.append(f"{label}: events: " + ", ".join(f"{kind} {count:,}" for kind, count in others.items()))
    return found


def origins(runs: Sequence[str | Path], labels: Sequence[str]) -> pd.DataFrame:
    """A row per run: code, versions, machine, command, and the settings in which it differs from the others."""
    rows = []
    for run, label, settings in zip(runs, labels, differences(runs), strict=True):
        origin = read_json(find_run(run) / "provenance.json") or {}
        versions, git = origin.get("versions") or {}, (origin.get("git") or {}).get("hpcrl") or {}
        commit = str(git.get("commit", ""))[:12] + (" with changes" if git.get("dirty") else "")
        rows.append(
            {
                "run": label,
                "differs in": ", ".join(f"{key}={value}" for key, value in settings.items()),
                "hpcrl": f"{versions.get('hpcrl', '?')} {commit}".strip(),
                "packages": ", ".join(f"{name} {text}" for name, text in versions.items() if name != "hpcrl"),
                "python": origin.get("python"),
                "MPI": str(origin.get("mpi_library", "")).partition("\n")[0],
                "launcher": origin.get("launcher"),
                "job": (origin.get("environment") or {}).get("SLURM_JOB_ID"),
                "nodes": ", ".join(origin.get("node_list") or []),
                "began": origin.get("collected_at"),
                "command": " ".join(origin.get("command") or []),
            }
        )
    return pd.DataFrame(rows)


def _percent(part: int, whole: int | None) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "?"


def _moments(values: Mapping[str, Any] | None) -> str:
    return f"{values['mean']:.2f} ± {values['std']:.2f}" if values else "-"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"
