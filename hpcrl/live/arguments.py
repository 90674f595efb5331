"""The command lines of `hpcrl watch` and `hpcrl export`. Loads nothing that reads files."""

from __future__ import annotations

import argparse
from typing import Any

from hpcrl.config.command_line import add_run_command

_WATCH_HELP = """\
Progress against the budget and the time left, speed, training return over env_steps, lag, where each role's time goes,
the newest checkpoint, the last events. RUN may not be there yet: then this waits for it. It ends with the run, or by
Ctrl-C, which the run does not notice. Needs neither MPI nor torch, and works on another host that sees the files.

  hpcrl watch runs/cartpole-impala-0-001
  hpcrl watch runs/cartpole-impala-0-001 --once              one look, whatever state the run is in
  hpcrl watch runs/long --stay                               through requeues and resumes, until the budget is reached
  hpcrl watch runs/cartpole-impala-0-001 | tee watched.txt   into a pipe or a file: a line where anything is new

exit codes: 0 however the run ended, 2 RUN can be no run
"""

_EXPORT_HELP = """\
--tensorboard writes DIR/NAME with one event file per attempt; steps are env_steps, times those of the run. Series:
updates/COLUMN, metrics/NAME (what an algorithm reports beside the columns), episodes/return and episodes/length (mean
of those that ended between two updates), evaluation/return and evaluation/length (means). --csv writes DIR/NAME with
one file per table. Both replace what an earlier export of the run has left there: doing it again changes nothing.
--wandb logs the same series as one new run of Weights & Biases; without a network set WANDB_MODE=offline.

  hpcrl export runs/cartpole-impala-0-001 --tensorboard tb
  hpcrl export runs/cartpole-impala-0-001 --tensorboard tb --follow    until the run ends
  hpcrl export runs/cartpole-impala-0-001 --csv csv
  WANDB_MODE=offline hpcrl export runs/cartpole-impala-0-001 --wandb

Needs neither MPI nor torch. --tensorboard needs pip install 'hpcrl[tensorboard]', --wandb 'hpcrl[wandb]'.

exit codes: 0 done, 1 a result file could not be read, 2 RUN is no run, or something is missing that was asked for
"""


def add_commands(commands: Any) -> None:
    """Add `watch` and `export` to the commands of hpcrl."""
    text = "a run on the terminal, as it goes on"
    watch = add_run_command(commands, "watch", _watch, text, epilog=_WATCH_HELP)
    watch.add_argument(
        "--every", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)"
    )
    watch.add_argument("--once", action="store_true", help="look once and end")
    watch.add_argument(
        "--stay",
        action="store_true",
        help="do not end with an attempt that is stopped or killed: wait for the next",
    )
    text = "a run for TensorBoard, as CSV, or to Weights & Biases"
    export = add_run_command(commands, "export", _export, text, epilog=_EXPORT_HELP)
    export.add_argument("--tensorboard", metavar="DIR", help="write event files below this log directory")
    export.add_argument("--csv", metavar="DIR", help="write one CSV file per table below this folder")
    export.add_argument(
        "--wandb",
        metavar="PROJECT",
        nargs="?",
        const="hpcrl",
        help="log to this project of Weights & Biases (default: hpcrl)",
    )
    export.add_argument("--follow", action="store_true", help="go on while the run does, until it ends")
    export.add_argument(
        "--every",
        type=float,
        default=5.0,
        metavar="S",
        help="with --follow: seconds between looks (default: 5)",
    )


def _watch(arguments: argparse.Namespace) -> int:
    from hpcrl.live.watch import watch_command

    return watch_command(arguments.run, arguments.every, once=arguments.once, stay=arguments.stay)


def _export(arguments: argparse.Namespace) -> int:
    from hpcrl.live.export import Wanted, export_command

    wanted = Wanted(arguments.tensorboard, arguments.csv, arguments.wandb)
    return export_command(arguments.run, wanted, arguments.every if arguments.follow else None)
