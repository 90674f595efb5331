"""`hpcrl drill`: hurt runs of the user's own recipe in every way they should survive or end well, and say which did."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hpcrl.config import ConfigError, ExitCode, RunConfig
from hpcrl.config.protections import PROTECTIONS
from hpcrl.drill.arguments import EXERCISES, Options
from hpcrl.drill.exercises import FUNCTIONS
from hpcrl.drill.plan import Drill
from hpcrl.drill.runs import NotHeldError, NotTriedError
from hpcrl.launch.recipes import load_config
from hpcrl.launch.situation import look

Outcome = Literal["held", "failed", "not tried"]
_STYLES = {"held": "green", "failed": "bold red", "not tried": "yellow"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What an exercise has shown."""

    exercise: str
    outcome: Outcome
    seconds: float
    detail: str


def drill_command(recipe: str, overrides: Sequence[str], num_ranks: int | None, options: Options) -> ExitCode:
    """Do the exercises, print what was found; FINISHED if nothing failed, else ERROR.

    Folders of exercises that failed stay below storage.runs_dir. Raises ConfigError before anything is started.
    """
    names = chosen("--only", options.only, EXERCISES) or list(EXERCISES)
    without = chosen("--without", options.without, PROTECTIONS)
    if look().in_world:
        raise ConfigError("hpcrl drill starts its runs itself: start it once, not under mpiexec or srun")
    config = load_config(recipe, overrides, num_ranks).with_overrides(
        [f"faults.without={json.dumps(without)}"]
    )
    logging.getLogger("hpcrl").addHandler(logging.NullHandler())  # of damaged files only the findings tell
    folder = make_folder(config)
    drill = Drill(config, num_ranks, folder, options.stall_timeout_s, options.bound_s)
    findings: list[Finding] = []
    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no run outlives its exercise
    try:
        for name in names:
            findings.append(do_exercise(name, drill))  # noqa: PERF401 - these stay when interrupted
    except KeyboardInterrupt:
        interrupted = True
        sys.stderr.write("drill: interrupted\n")
    kept = str(folder) if any(folder.iterdir()) else None
    if kept is None:
        folder.rmdir()
    report(findings, without, kept, as_json=options.as_json)
    failed = interrupted or any(finding.outcome == "failed" for finding in findings)
    return ExitCode.ERROR if failed else ExitCode.FINISHED


def chosen(option: str, names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names, each once, in the order of `known`. Raises ConfigError for one that is not there. Pure."""
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name}: there is no such thing; use {', '.join(known)}")
    return [name for name in known if name in names]


def make_folder(config: RunConfig) -> Path:
    """A new folder below storage.runs_dir: the file system that runs use is a part of what is drilled."""
    parent = Path(config.storage.runs_dir).absolute()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="drill-", dir=parent))
    except OSError as error:
        raise ConfigError(f"storage.runs_dir={str(parent)!r} cannot be written: {error}") from error


def do_exercise(name: str, drill: Drill) -> Finding:
    """Do one exercise in a folder of its own, which stays only if the exercise fails."""
    sys.stderr.write(f"drill: {name}: {EXERCISES[name]}\n")
    folder = drill.folder / name
    folder.mkdir()
    began = time.monotonic()
    outcome: Outcome = "held"
    try:
        detail = FUNCTIONS[name](replace(drill, folder=folder))
    except NotHeldError as error:
        outcome, detail = "failed", str(error)
    except NotTriedError as error:
        outcome, detail = "not tried", str(error)
    if outcome != "failed":
        shutil.rmtree(folder)
    seconds = round(time.monotonic() - began, 1)
    sys.stderr.write(f"drill: {name}: {outcome} ({seconds} s)\n")
    return Finding(name, outcome, seconds, detail)


def report(findings: Sequence[Finding], without: Sequence[str], kept: str | None, *, as_json: bool) -> None:
    """Print the findings as a table, or as one JSON object."""
    if as_json:
        values = {
            "without": list(without),
            "findings": [asdict(finding) for finding in findings],
            "kept": kept,
        }
        sys.stdout.write(json.dumps(values, indent=2) + "\n")
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(render(findings))
    if without:
        console.print(f"switched off: {', '.join(without)}")
    if kept:
        console.print(f"runs and output of what failed: {kept}", soft_wrap=True, highlight=False)


def render(findings: Sequence[Finding]) -> Table:
    """Lay out the findings for rich. Pure."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("exercise", "protection", "seconds", "what was seen"):
        last = column == "what was seen"
        justify: Literal["left", "right"] = "right" if column == "seconds" else "left"
        table.add_column(column, justify=justify, no_wrap=not last, overflow="fold")
    for finding in findings:
        outcome = f"[{_STYLES[finding.outcome]}]{finding.outcome}[/]"
        table.add_row(finding.exercise, outcome, f"{finding.seconds:.1f}", escape(finding.detail))
    return table
