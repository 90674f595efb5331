"""The command line of `hpcrl diagnose`. Loads nothing that reads files."""

from __future__ import annotations

import argparse
from typing import Any

from hpcrl.config.command_line import add_run_command

_HELP = """\
First what is wrong with the run, worst first: wrong (results cannot be trusted, or there are none), harmful (learning
suffers), costly (time does). Then the bottleneck: the part of the run that the others wait for (environment, inference,
transport, queue, learner compute, reduction, evaluation, upkeep), the hop in it, and its share of its rank's time. Each
with the numbers it was seen by, and one change: a key and a value that the run's configuration allows, or what to do.

Works on a run that goes on (what it says then is of what is written so far), was killed, or has ended, and looks at the
last attempt that has trained. What a run is too short for is said. Needs neither MPI nor torch.

exit codes: 0 nothing is wrong (a bottleneck there always is), 1 something is, 2 RUN is no run
"""


def add_command(commands: Any) -> None:
    """Add `diagnose` to the commands of hpcrl."""
    text = "what holds a run up, what is wrong with it, and what to change"
    add_run_command(commands, "diagnose", _command, text, epilog=_HELP, json=True)


def _command(arguments: argparse.Namespace) -> int:
    from hpcrl.diagnose.command import diagnose_command

    return diagnose_command(arguments.run, arguments.json)
