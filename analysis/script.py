"""What the command lines of all scripts here have in common: options, files to write, errors, progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from hpcrl.config import ConfigError

PICTURES = (".png", ".svg", ".pdf")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Output:
    """What a script has found."""

    frame: pd.DataFrame
    """for --csv"""
    figure: Figure | None = None
    """for --out"""
    text: str = ""
    """printed"""
    warning: str = ""
    """printed to stderr"""


def make_parser(name: str, description: str | None, examples: str, rows: str) -> argparse.ArgumentParser:
    """The options that every script has; `rows` says what a row of its CSV is."""
    parser = argparse.ArgumentParser(
        prog=f"{name}.py",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run directory, for example runs/cartpole-0-001, or a folder of such",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="picture to write; the ending decides: .png, .svg or .pdf"
    )
    parser.add_argument("--csv", metavar="FILE", help=f"table to write, {rows}")
    return parser


def run_script(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    work: Callable[[argparse.Namespace], Output],
) -> int:
    """Read the command line, do the work, write the files. Returns the exit code.

    0, or 2 with one line on stderr for a run, a setting or a file that cannot be used.
    """
    options = parser.parse_args(arguments)
    name = parser.prog.removesuffix(".py")
    try:
        if options.out is not None and Path(options.out).suffix.lower() not in PICTURES:
            raise ConfigError(f"--out {options.out}: a picture's name ends in {', '.join(PICTURES)}")
        output = work(options)
        if options.out is not None and output.figure is not None:
            output.figure.savefig(options.out)
        if options.csv is not None:
            output.frame.to_csv(options.csv, index=False)
    except (ConfigError, OSError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    if output.warning:
        print(f"{name}: {output.warning}", file=sys.stderr)
    if output.text:
        print(output.text, end="" if output.text.endswith("\n") else "\n")
    for path in (options.out, options.csv):
        if path is not None:
            print(f"wrote {path}")
    return 0


def progress(items: Sequence[_Item], what: str) -> Iterable[_Item]:
    """The same items, with a bar on stderr where a person watches and there is something to wait for."""
    watched = sys.stderr.isatty() and len(items) > 3
    return track(items, what, console=Console(stderr=True), transient=True) if watched else items
