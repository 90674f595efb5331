"""What the commands of hpcrl that look at a run have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Command = Callable[[argparse.Namespace], int]


def add_run_command(
    commands: Any,
    name: str,
    command: Command,
    help_text: str,
    *,
    epilog: str | None = None,
    run: str = "run directory",
    json: bool = False,
) -> argparse.ArgumentParser:
    """Add `hpcrl NAME RUN` to the commands of hpcrl; its parser, for more arguments.

    `command` gets all of them and returns the exit code. `epilog` is printed as it is, below `--help`; `run` says what
    RUN may be; `json` adds --json.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help=run)
    if json:
        parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(command=command)
    return parser
