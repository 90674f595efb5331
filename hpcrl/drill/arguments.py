"""The command line of `hpcrl drill`. Loads no files, MPI or torch, so that every command may import it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrl.config.protections import PROTECTIONS

EXERCISES = {
    "kill": "SIGKILL to one rank of each role, one start after the other",
    "kill-save": "SIGKILL to the rank that completes checkpoints, while one is being written",
    "stall": "SIGSTOP to a rank, for good",
    "delay": "SIGSTOP and SIGCONT, half of the stall limit apart, to one rank of each role",
    "signal": "SIGUSR1 to every rank, twice, then SIGTERM",
    "disk-full": "no file can grow any more",
    "corrupt": "a byte of the newest checkpoint is another one than was written",
    "second-writer": "a second run in the run directory of one under way",
    "nan": "every reward is NaN",
}
"""What is done to the runs, by name, in this order."""

_HELP = """\
Real runs of your recipe are started here as `hpcrl run` starts them, hurt from outside, and resumed. It takes a few
minutes. Ranks on this host are hurt; the files go below storage.runs_dir, and those of what failed stay there.

exercises:
{exercises}

A drill is worth something only if it fails where a protection is missing. --without switches one off in its runs:
{protections}

exit codes: 0 all that was tried held, 1 something failed, 2 wrong configuration (nothing was started)
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for beside the recipe."""

    without: Sequence[str]
    """Protections that are switched off in the drilled runs."""
    only: Sequence[str]
    """Exercises; none: all."""
    stall_timeout_s: float
    bound_s: float
    as_json: bool


def add_command(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers, with what is its own; RECIPE and the like are the caller's to add."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "drill",
        help="kill, stall, stop and spoil runs of your recipe: which protections hold",
        epilog=_HELP.format(exercises=_lines(EXERCISES), protections=_lines(PROTECTIONS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", default=[], metavar="EXERCISE", help="repeatable")
    parser.add_argument(
        "--without", action="append", default=[], metavar="PROTECTION", help="switch it off; repeatable"
    )
    parser.add_argument(
        "--stall-timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="faults.stall_timeout_s of stall and delay (default: 5): longer than any env_step, update or save",
    )
    parser.add_argument(
        "--bound",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="within which a failure must have ended the job (default: 10)",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    return parser


def options(given: argparse.Namespace) -> Options:
    """What was given, beside the recipe."""
    return Options(given.without, given.only, given.stall_timeout, given.bound, given.json)


def _lines(meanings: Mapping[Any, str]) -> str:
    return "\n".join(f"  {name:<18} {meaning}" for name, meaning in meanings.items())
