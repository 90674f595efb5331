"""What each run came to: one score per run, from its evaluations or from its training episodes, and whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from load import load_run
from script import progress
from sweeps import find_runs, run_labels, setting_labels

from hpcrl.config import ConfigError, ExitCode
from hpcrl.storage import find_run, read_status
from hpcrl.storage.files import read_json

LAST_EPISODES = 100
ENDED = (ExitCode.FINISHED, ExitCode.LEARNING_FAILED)
"""Exit codes of runs that count: the budget is used, or the gradients are not finite any more."""
FEW_SEEDS = 5
SOURCES = ("auto", "evaluation", "training")


def run_scores(
    runs: Sequence[str | Path],
    *,
    by: Sequence[str] = (),
    source: str = "auto",
    at: int | None = None,
    unfinished: bool = False,
) -> pd.DataFrame:
    """A row per run: run, setting, env, seed, score, episodes, source, env_steps, wall_s, status, counts, why_not.

    `source`: "evaluation", the mean return of the last evaluation of the frozen policy; "training", the mean of the
    last 100 training episodes (with exploration); "auto", evaluation where every run that counts has one. Never both:
    they are different things. `at`: as the run stood after that many env_steps. `counts` is False, with the reason in
    `why_not`, for runs that did not end (unless `unfinished`), that did not get to `at`, or that have no score.
    `by`: settings that group the runs (see `sweeps.setting_labels`). Raises ConfigError where there is no run.
    """
    if source not in SOURCES:
        raise ConfigError(f"source {source!r} must be one of {', '.join(SOURCES)}")
    found = find_runs(runs)
    labels, settings = run_labels(found), setting_labels(found, by)
    rows = []
    for run, label, setting in zip(progress(found, "reading runs"), labels, settings, strict=True):
        rows.append({"run": label, "setting": setting, **_row(find_run(run), at, unfinished)})
    frame = pd.DataFrame(rows)
    counted = frame[frame["counts"]]
    if source == "auto":
        whole = len(counted) and bool(counted["evaluation"].notna().all())
        source = "evaluation" if whole else "training"
    frame.insert(4, "score", frame[source])
    frame.insert(5, "episodes", frame[f"{source}_episodes"])
    frame.insert(6, "source", source)
    unscored = frame["counts"] & frame["score"].isna()
    frame.loc[unscored, "why_not"] = {
        "evaluation": "it has no evaluation",
        "training": "no training episode has ended",
    }[source]
    frame.loc[unscored, "counts"] = False
    return frame.drop(columns=[f"{name}{end}" for name in SOURCES[1:] for end in ("", "_episodes")])


def by_setting(frame: pd.DataFrame) -> dict[str, dict[str, npt.NDArray[np.float64]]]:
    """Scores that count: setting -> environment -> one score per seed."""
    counted = frame[frame["counts"]]
    return {
        str(setting): {
            str(env): group["score"].to_numpy(np.float64) for env, group in rows.groupby("env", sort=True)
        }
        for setting, rows in counted.groupby("setting", sort=False)
    }


def left_out(frame: pd.DataFrame) -> str:
    """Who does not count and why, in one line; empty where all do."""
    rows = frame[~frame["counts"]]
    if not len(rows):
        return ""
    named = "; ".join(f"{row.run}: {row.why_not}" for row in rows.head(3).itertuples())
    more = f"; and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"left out, {len(rows)} of {len(frame)} runs: {named}{more}"


def notes(frame: pd.DataFrame) -> list[str]:
    """What a reader of comparisons of these runs must know, a sentence each."""
    counted, found = frame[frame["counts"]], []
    fewest = counted.groupby(["setting", "env"]).size().min() if len(counted) else 0
    if 0 < fewest < FEW_SEEDS:
        found.append(f"as few as {fewest} seed{'s' if fewest > 1 else ''}: intervals are too narrow to trust")
    reached = counted.groupby("env")["env_steps"].agg(["min", "max"])
    for env, row in reached[reached["max"] > 1.1 * reached["min"]].iterrows():
        found.append(
            f"runs on {env} end at {row['min']:,} to {row['max']:,} env_steps; compare at equal ones by --at N"
        )
    again = counted[counted.duplicated(["setting", "env", "seed"], keep=False)]
    if len(again):
        found.append(
            f"{len(again)} runs share setting and seed with another one and count as seeds of their own"
        )
    return found


def need_scores(frame: pd.DataFrame) -> None:
    """Raise ConfigError where no run counts."""
    if not frame["counts"].any():
        raise ConfigError(f"no run has a score to compare; {left_out(frame)}")


def returns_at(
    episodes: pd.DataFrame, places: npt.NDArray[np.float64], window: int = LAST_EPISODES
) -> npt.NDArray[np.float64]:
    """Mean return of the last `window` training episodes that had ended at each of `places` (env_steps); NaN before."""
    if not len(episodes):
        return np.full(len(places), np.nan)
    ordered = episodes.sort_values("env_steps", kind="stable")
    rolling: Any = ordered["episode_return"].rolling(window, min_periods=1).mean()
    before = np.searchsorted(ordered["env_steps"].to_numpy(), places, side="right") - 1
    return np.where(before >= 0, rolling.to_numpy()[np.maximum(before, 0)], np.nan)


def _row(run: Path, at: int | None, unfinished: bool) -> dict[str, Any]:
    config, status = read_json(run / "config.json") or {}, read_status(run)
    tables = load_run(run, "updates", "episodes", "evaluation")
    updates, episodes, evaluation = tables["updates"], tables["episodes"], tables["evaluation"]
    reached = int(updates["env_steps"].max()) if len(updates) else 0
    why_not = ""
    if status.get("exit_code") not in ENDED and not unfinished:
        why_not = f"{status['status']}, not finished (count it by --unfinished)"
    elif at is not None and reached < at:
        why_not = f"it has {reached:,} env_steps, not {at:,}"
    if at is not None:
        updates, episodes, evaluation = (
            table[table["env_steps"] <= at] for table in (updates, episodes, evaluation)
        )
    last = evaluation[evaluation["update"] == evaluation["update"].max()] if len(evaluation) else evaluation
    training = episodes["episode_return"].tail(LAST_EPISODES)
    return {
        "env": str((config.get("env") or {}).get("id", "unknown")),
        "seed": config.get("seed", -1),
        "env_steps": int(updates["env_steps"].max()) if len(updates) else 0,
        "wall_s": float(updates["wall_s"].max()) if len(updates) else 0.0,
        "status": status["status"],
        "counts": not why_not,
        "why_not": why_not,
        "evaluation": last["episode_return"].mean() if len(last) else np.nan,
        "evaluation_episodes": len(last),
        "training": training.mean() if len(training) else np.nan,
        "training_episodes": len(training),
    }
