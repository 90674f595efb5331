"""What `hpcrl models` does and prints."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hpcrl.config import ConfigError
from hpcrl.storage import find_run
from hpcrl.storage.models import (
    Model,
    Tags,
    best_model,
    export_model,
    find_model,
    read_tags,
    stored_models,
    write_tags,
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_TAKEN = ("best", "newest", "current")


def models_command(arguments: argparse.Namespace) -> int:
    """Do what is asked for and print the list. Raises ConfigError for a run or model that is not there."""
    run = find_run(arguments.run)
    console = Console(soft_wrap=True, highlight=False)
    if arguments.export:
        version, file = arguments.export
        model = find_model(run, version)
        export_model(model, Path(file))
        console.print(f"{file}: model {model.version} of {run}")
        return 0
    if arguments.tag:
        tag_model(run, *arguments.tag)
    elif arguments.untag:
        untag_model(run, arguments.untag)
    elif arguments.rollback:
        roll_back(run, arguments.rollback)
    if arguments.json:
        sys.stdout.write(json.dumps(listing(run), indent=2) + "\n")
        return 0
    console.print(str(run), style="bold")
    models = stored_models(run)
    console.print(_table(models, read_tags(run)) if models else "no model is stored")
    return 0


def tag_model(run: Path, name: str, version: str) -> None:
    """Name a model, which then stays; a name that another one has goes over to it. Raises ConfigError."""
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise ConfigError(
            f"a tag cannot be {name!r}; use letters, digits, '.', '_' and '-', no digit first, and none of "
            f"{', '.join(_TAKEN)}"
        )
    model, tags = find_model(run, version), read_tags(run)
    write_tags(run, replace(tags, tags={**tags.tags, name: model.version}))


def untag_model(run: Path, name: str) -> None:
    """Take a name away; the model goes when the run next stores one, unless it stays for another reason."""
    tags = read_tags(run)
    if name not in tags.tags:
        raise ConfigError(f"{run} has no tag {name!r}; there are {', '.join(sorted(tags.tags)) or 'none'}")
    write_tags(run, replace(tags, tags={tag: version for tag, version in tags.tags.items() if tag != name}))


def roll_back(run: Path, version: str) -> None:
    """Make a model the current one, which then stays; `newest`: whichever is the newest, as at first."""
    current = None if version == "newest" else find_model(run, version).version
    write_tags(run, replace(read_tags(run), current=current))


def listing(run: Path) -> dict[str, object]:
    """All that is known of the models of a run; JSON types only."""
    models, tags = stored_models(run), read_tags(run)
    best = best_model(models)
    return {
        "run": str(run),
        "models": [
            asdict(model) | {"path": str(model.path), "names": _names(model, models, tags)}
            for model in models
        ],
        "tags": tags.tags,
        "best": best and best.version,
        "newest": models[-1].version if models else None,
        "current": find_model(run).version if models else None,
        "rolled_back": tags.current is not None,
    }


def _table(models: list[Model], tags: Tags) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("version", "env_steps", "evaluation (episodes)", "created (UTC)", "names"):
        numbers = name in ("version", "env_steps")
        table.add_column(name, justify="right" if numbers else "left", no_wrap=name != "names")
    for model in models:
        score = model.evaluation
        text = "none" if score is None else f"{score.mean:.2f} ± {score.std:.2f} ({score.episodes})"
        created = model.created[:16].replace("T", " ")
        names = ", ".join(_names(model, models, tags))
        table.add_row(str(model.version), f"{model.env_steps:,}", text, created, names)
    return table


def _names(model: Model, models: list[Model], tags: Tags) -> list[str]:
    best = best_model(models)
    current = models[-1].version if tags.current is None else tags.current
    known = {"best": best and best.version, "newest": models[-1].version, "current": current}
    return [
        *(name for name, version in known.items() if version == model.version),
        *tags.names(model.version),
    ]
