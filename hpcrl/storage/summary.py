"""A run in one dictionary, and that dictionary on one screen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.config import ConfigError
from hpcrl.storage.checkpoint import by_score
from hpcrl.storage.evaluations import best_evaluation, evaluations, moments
from hpcrl.storage.files import read_json
from hpcrl.storage.health import NOISE_UPDATES, last_returns, noise_scale, odd_actors
from hpcrl.storage.models import stored_models
from hpcrl.storage.rundir import read_status
from hpcrl.storage.runlog import attempt_files, attempt_seconds, read_table
from hpcrl.storage.schema import Rows
from hpcrl.storage.shares import actor_shares, shares_text
from hpcrl.storage.trained import lag_summary, replay_summary, replay_text

_RETURN_EPISODES = 100
_MAX_PLAN_ROWS = 12
STATUS_STYLES = {"finished": "bold green", "running": "bold cyan", "stopped": "bold yellow"}


def find_run(path: str | Path) -> Path:
    """Directory of the run that `path` names: itself, or the one a file in it belongs to.

    Raises ConfigError when there is no run.
    """
    given = Path(path)
    for folder in (given, given.parent, given.parent.parent) if given.is_file() else (given,):
        if any((folder / name).exists() for name in ("config.json", "status.json", "attempts")):
            return folder
    what = "does not exist" if not given.exists() else "holds no run"
    raise ConfigError(
        f"{str(path)!r} {what}; expected a run directory, which has config.json, attempts/ and run.h5"
    )


def describe(run_dir: str | Path) -> dict[str, Any]:
    """Summarize a run, in whatever state it is; JSON types only, None for what is not known.

    Raises ConfigError when `run_dir` is not a run.
    """
    run = find_run(run_dir)
    status = read_status(run)
    config = read_json(run / "config.json") or {}
    provenance = read_json(run / "provenance.json") or {}
    updates = read_table(run, "updates")
    seconds = attempt_seconds(run)
    env_steps, wall_s = _progress(status, updates, seconds)
    learners, episodes = _last_weights(read_table(run, "learners")), read_table(run, "episodes")
    evaluated = evaluations(read_table(run, "evaluation"))
    return {
        "name": config.get("name"),
        "run_dir": str(run),
        "status": status["status"],
        "exit_code": status.get("exit_code"),
        "cause": status.get("cause") or "",
        "attempts": len(attempt_files(run)),
        "attempt_list": _attempts(run, status, updates, seconds),
        "checkpoints": sorted(int(path.name) for path in (run / "checkpoints").glob("[0-9]*")),
        "best_checkpoint": _best_checkpoint(run),
        "scheme": config.get("scheme"),
        "algorithm": config.get("algorithm", {}).get("name"),
        "env": config.get("env", {}).get("id"),
        "seed": config.get("seed"),
        "budget_env_steps": config.get("budget", {}).get("env_steps"),
        "env_steps": env_steps,
        "env_steps_per_s": env_steps / wall_s if wall_s else None,
        "wall_s": wall_s,
        "updates": int(updates["update"].max()) if len(updates) else 0,
        "lag": lag_summary(read_table(run, "lag"), updates),
        "replay": replay_summary(read_table(run, "replay")),
        "actors": actor_shares(run),
        "training_return": _training_return(episodes),
        "odd_actors": [str(one) for one in odd_actors(last_returns(episodes))],
        "noise_scale": noise_scale(updates),
        "evaluation": evaluated[-1] if evaluated else None,
        "best_evaluation": best_evaluation(evaluated),
        "evaluations": len(evaluated),
        "models": [model.version for model in stored_models(run)],
        "ranks": _rank_plan(read_table(run, "ranks")),
        "job": _job(provenance.get("environment", {})),
        "weights_sha256": learners,
        "weights_equal": len(set(learners)) == 1 if learners else None,
        "events": _event_counts(read_table(run, "events")),
        "versions": provenance.get("versions", {}),
        "next_commands": _next_commands(run, status["status"]),
    }


def render(summary: dict[str, Any]) -> RenderableType:
    """Lay out what `describe` returned as one screen for rich."""
    status = summary["status"]
    head = Text.assemble((summary["name"] or summary["run_dir"], "bold"), "  ")
    head.append(status, STATUS_STYLES.get(status, "bold red"))
    if summary["exit_code"] is not None:
        head.append(f" (exit code {summary['exit_code']})")
    if summary["cause"]:
        head.append(f": {summary['cause']}")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for label, text in _lines(summary):
        grid.add_row(label, Text(text))
    parts: list[RenderableType] = [head, grid]
    if len(summary["attempt_list"]) > 1:
        parts += [Text(), _attempt_table(summary["attempt_list"])]
    if summary["ranks"]:
        parts += [Text(), _plan_table(summary["ranks"])]
    parts += [
        Text(),
        Text("next:", "dim"),
        *(Text(f"  {command}", no_wrap=True) for command in summary["next_commands"]),
    ]
    return Group(*parts)


def _lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    rate, lag = summary["env_steps_per_s"], summary["lag"]
    budget = summary["budget_env_steps"]
    lines = [
        ("run", f"{summary['run_dir']}  ({_many(summary['attempts'], 'attempt')})"),
        ("what", _what(summary)),
        ("env_steps", f"{summary['env_steps']:,}" + (f" of {budget:,}" if budget else "")),
        ("wall time", f"{summary['wall_s']:.1f} s" + (f", {rate:,.0f} env_steps/s" if rate else "")),
        ("updates", f"{summary['updates']:,}"),
        ("lag", f"{lag['min']} to {lag['max']} updates, mean {lag['mean']:.2f}" if lag else "none recorded"),
        *_source(summary),
        ("training return", _return_text(summary["training_return"], "no episode has ended")),
        ("evaluation", _return_text(summary["evaluation"], "none")),
    ]
    if summary["evaluations"] > 1:
        best = summary["best_evaluation"]
        text = (
            f"{_return_text(best, '')}, at update {best['update']:,}, of {summary['evaluations']} evaluations"
        )
        lines.append(("best evaluation", text))
    lines += [("odd", text) for text in summary["odd_actors"]]
    if (noise := summary["noise_scale"]) is not None:
        lines.append(("noise scale", f"{noise:,.0f} env_steps, of the last {NOISE_UPDATES} updates"))
    if summary["job"]:
        lines.append(("job", f"{summary['job']['id']} on {summary['job']['nodes']}"))
    if summary["weights_sha256"]:
        equal = "equal on all learners" if summary["weights_equal"] else "DIFFERENT ON THE LEARNERS"
        lines.append(("weights", f"{summary['weights_sha256'][0][:16]}  {equal}"))
    saved = ", ".join(f"update {number:,}" for number in summary["checkpoints"])
    if (best := summary["best_checkpoint"]) is not None:
        saved += f"; best: update {best['update']:,}, training return {best['score']:.1f}"
    lines.append(("checkpoints", saved or "none"))
    if summary["models"]:
        lines.append(("models", f"version {', '.join(map(str, summary['models']))}"))
    lines.append(("events", ", ".join(f"{kind} {n}" for kind, n in summary["events"].items()) or "none"))
    lines.append(
        ("versions", ", ".join(f"{name} {v}" for name, v in summary["versions"].items()) or "unknown")
    )
    return lines


def _source(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Where what was trained on came from."""
    replay = summary["replay"]
    if replay is not None:
        return [("replay memory", replay_text(replay))]
    return [("actors trained on", shares_text(summary["actors"]))]


def _best_checkpoint(run: Path) -> dict[str, Any] | None:
    best = by_score(run)[:1]
    return {"update": best[0][0], "score": best[0][1]} if best else None


def _what(summary: dict[str, Any]) -> str:
    if summary["algorithm"] is None:
        return "unknown: config.json is missing or unreadable"
    return f"{summary['algorithm']} on {summary['env']}, scheme {summary['scheme']}, seed {summary['seed']}"


def _return_text(values: dict[str, Any] | None, absent: str) -> str:
    if values is None:
        return absent
    seed = f", seed {values['seed']}" if "seed" in values else ""
    cut = f", {values['cut']} cut" if values.get("cut") else ""
    return f"{values['mean']:.2f} ± {values['std']:.2f} over {_many(values['n'], 'episode')}{seed}{cut}"


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _plan_table(ranks: list[dict[str, Any]]) -> Table:
    groups = Counter((rank["node"], rank["role"], rank["device"], rank["threads"]) for rank in ranks)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("node", "role", "ranks", "device", "threads each"):
        table.add_column(name, justify="right" if name in ("ranks", "threads each") else "left")
    for (node, role, device, threads), number in list(groups.items())[:_MAX_PLAN_ROWS]:
        table.add_row(node, role, str(number), device, str(threads))
    if len(groups) > _MAX_PLAN_ROWS:
        table.add_row(f"… and {len(groups) - _MAX_PLAN_ROWS} lines more")
    return table


def _attempt_table(attempts: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("attempt", "from update", "to update", "env_steps", "wall time", "end"):
        table.add_column(name, justify="left" if name == "end" else "right")
    for one in attempts[-_MAX_PLAN_ROWS:]:
        counts = [f"{one[name]:,}" for name in ("attempt", "first_update", "last_update", "env_steps")]
        table.add_row(*counts, f"{one['wall_s']:.1f} s", one["end"])
    return table


def _next_commands(run: Path, status: str) -> list[str]:
    again = [f"hpcrl run {run} --resume must"] if status in ("stopped", "killed", "failed") else []
    play = [f"hpcrl play {run}"] if stored_models(run) else []
    look = [f"hpcrl describe {run}", f"hpcrl diagnose {run}"]
    return [*again, *play, *look, f"python analysis/curves.py {run} --out curves.png"]


def _attempts(
    run: Path, status: dict[str, Any], updates: Rows, seconds: dict[int, float]
) -> list[dict[str, Any]]:
    """What each attempt added that counts (see `read_table`) and how it ended; the last one as its status says."""
    events = read_table(run, "events")
    found: list[dict[str, Any]] = []
    files = attempt_files(run)
    last = 0
    for path in files:
        number = int(path.stem)
        own, said = updates[updates["attempt"] == number], events[events["attempt"] == number]["kind"]
        end = next((word for word in ("finished", "stopped", "failed") if word.encode() in said), "killed")
        first = int(own["update"].min()) - 1 if len(own) else last
        last = int(own["update"].max()) if len(own) else last
        found.append(
            {
                "attempt": number,
                "first_update": first,
                "last_update": last,
                "env_steps": int(own["env_steps"].max()) if len(own) else 0,
                "wall_s": seconds.get(number, 0.0),
                "end": status["status"] if path == files[-1] else end,
            }
        )
    return found


def _progress(status: dict[str, Any], updates: Rows, seconds: dict[int, float]) -> tuple[int, float]:
    """(env_steps, wall_s); of a run that did not end in order, the result file knows more than its status."""
    env_steps, wall_s = int(updates["env_steps"].max(initial=0)), sum(seconds.values())
    return max(env_steps, int(status.get("env_steps") or 0)), max(wall_s, float(status.get("wall_s") or 0.0))


def _training_return(episodes: Rows) -> dict[str, Any] | None:
    return moments(episodes["episode_return"][-_RETURN_EPISODES:])


def _rank_plan(rows: Rows) -> list[dict[str, Any]]:
    rows = rows[rows["attempt"] == rows["attempt"].max()] if len(rows) else rows
    names = [name for name in rows.dtype.names or () if name != "attempt"]
    return [{name: _plain(row[name]) for name in names} for row in np.sort(rows, order="world_rank")]


def _job(environment: dict[str, str]) -> dict[str, str] | None:
    """The Slurm job that the writer's rank belonged to; of a heterogeneous job and of an array, the whole."""
    names = ("SLURM_HET_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID")
    number = next((environment[name] for name in names if environment.get(name)), None)
    return {"id": number, "nodes": environment.get("SLURM_JOB_NODELIST", "")} if number else None


def _last_weights(rows: Rows) -> list[str]:
    """Hashes of the last fingerprinted update, one per learner, by role_rank."""
    if not len(rows):
        return []
    last = rows[(rows["attempt"] == rows["attempt"][-1]) & (rows["update"] == rows["update"][-1])]
    return [_plain(row["weights_sha256"]) for row in np.sort(last, order="role_rank")]


def _event_counts(rows: Rows) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[_plain(row["kind"])] += int(row["count"])
    return dict(counts)


def _plain(value: Any) -> Any:
    item = value.item()
    return item.decode(errors="replace") if isinstance(item, bytes) else item
