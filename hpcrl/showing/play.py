"""`hpcrl play`: a stored model in the environment of its run, without MPI."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hpcrl.algorithms import Algorithm, frozen_policy, make_algorithm
from hpcrl.config import ConfigError, EvaluationConfig, RunConfig
from hpcrl.envs import EpisodeResult, evaluate_policy, make_env_spec, run_episodes
from hpcrl.envs.rendering import make_filmed
from hpcrl.launch.recipes import load_config
from hpcrl.showing.video import Film
from hpcrl.storage import checkpoint, find_run
from hpcrl.storage.models import find_model, load_parameters, stored_models
from hpcrl.storage.parts import Values


def play_command(arguments: argparse.Namespace) -> int:
    """Print what the policy reached. Raises ConfigError for a run, model or environment that is not to be had."""
    run = find_run(arguments.run)
    config = load_config(str(run))
    settings = _settings(config, arguments)
    film = None if arguments.video is None else Film(Path(arguments.video))
    algorithm, what = load_policy(run, config, arguments.model, arguments.checkpoint)
    filmed = None if film is None else _film(film, config, algorithm, settings)
    policy = frozen_policy(algorithm, settings.episodes, settings.seed, greedy=settings.greedy)
    found = evaluate_policy(config.env, settings, policy)
    summary = _summary(run, what, settings, found)
    if film is not None and filmed is not None:
        kept = {"file": str(film.path), "frames": film.frames, "whole": film.whole}
        summary["video"] = kept | {"return": filmed.episode_return, "length": filmed.length}
        summary["video"]["engine"] = "gymnasium" if config.env.engine == "envpool" else config.env.engine
    if arguments.json:
        sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    else:
        _print(summary)
    return 0


def load_policy(
    run: Path, config: RunConfig, model: str | None = None, update: str | None = None
) -> tuple[Algorithm, str]:
    """The algorithm of a run with the parameters of a model, or of the checkpoint of an update, and which that is.

    Neither: the current model, or the newest checkpoint where no model is stored. Raises ConfigError.
    """
    algorithm = make_algorithm(config, make_env_spec(config.env))
    if update is None and (model is not None or stored_models(run)):
        found = find_model(run, model or "current")
        try:
            algorithm.parameters.load_named(load_parameters(found))
        except ValueError as error:
            raise ConfigError(f"model {found.version} of {run}: {error}") from error
        return algorithm, f"model {found.version}, of {found.env_steps:,} env_steps"
    saved = _checkpoint(run, update or "newest")

    def load(values: Values) -> None:
        algorithm.load_state({name: np.asarray(value) for name, value in values.items()})

    try:
        first = (saved.of_role("learner") or saved.of_role("worker"))[0]
        saved.restore(first, "algorithm", load)
    except (ValueError, OSError, IndexError) as error:
        raise ConfigError(f"{saved.path} cannot be played: {error}") from error
    return algorithm, f"checkpoint {saved.update}, of {int(saved.meta['env_steps']):,} env_steps"


def _checkpoint(run: Path, name: str) -> checkpoint.Saved:
    if name == "newest":
        try:
            return checkpoint.newest(run)
        except (ValueError, OSError) as error:
            raise ConfigError(f"{run} has neither a model nor a checkpoint to play: {error}") from error
    known = {str(int(path.name)): path for path in checkpoint.find_sets(run)}
    if best := checkpoint.by_score(run):
        known["best"] = known[str(best[0][0])]
    if name not in known:
        raise ConfigError(
            f"{run} has no checkpoint {name!r}; there are {', '.join(known) or 'none'}, and newest"
        )
    try:
        return checkpoint.verify(known[name])
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


def _settings(config: RunConfig, arguments: argparse.Namespace) -> EvaluationConfig:
    wanted: dict[str, Any] = {"episodes": arguments.episodes, "seed": arguments.seed}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if arguments.sample:
        wanted["greedy"] = False
    base = config.evaluation.to_dict() | wanted
    if wanted.get("episodes", 1) < 1:
        raise ConfigError(f"--episodes {wanted['episodes']} plays nothing; use at least 1")
    return EvaluationConfig.parse(base | {"episodes": max(1, base["episodes"])}, "evaluation")


def _film(film: Film, config: RunConfig, algorithm: Algorithm, settings: EvaluationConfig) -> EpisodeResult:
    """The first episode once more, with pictures."""
    env = make_filmed(config.env, settings.seed, film.add)
    try:
        policy = frozen_policy(algorithm, 1, settings.seed, greedy=settings.greedy)
        (result,) = run_episodes(env, policy, settings.max_episode_steps)
    finally:
        env.close()
    film.write(env.frames_per_s)
    return result


def _summary(run: Path, what: str, settings: EvaluationConfig, found: list[EpisodeResult]) -> dict[str, Any]:
    returns = np.array([one.episode_return for one in found])
    return {
        "run": str(run),
        "policy": what,
        "seed": settings.seed,
        "greedy": settings.greedy,
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "returns": returns.tolist(),
        "lengths": [one.length for one in found],
        "cut": [one.cut for one in found],
    }


def _print(summary: dict[str, Any]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[bold]{summary['run']}[/]  {summary['policy']}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("episode", "return", "env_steps"):
        table.add_column(name, justify="right")
    rows = zip(summary["returns"], summary["lengths"], summary["cut"], strict=True)
    for episode, (value, length, cut) in enumerate(rows):
        table.add_row(str(episode), f"{value:.2f}", f"{length:,}{' (cut)' if cut else ''}")
    console.print(table)
    how = "greedy" if summary["greedy"] else "sampled"
    console.print(
        f"return {summary['mean']:.2f} ± {summary['std']:.2f} (mean, standard deviation) over "
        f"{len(summary['returns'])} episodes, seed {summary['seed']}, {how}"
    )
    if "video" in summary:
        video = summary["video"]
        kept = "" if video["whole"] else ", the first of them"
        console.print(
            f"{video['file']}: {video['frames']} pictures{kept}, in {video['engine']}; "
            f"return {video['return']:.2f} in {video['length']:,} env_steps"
        )
