"""The command line of `hpcrl audit`. Loads no files, so that every command may import it."""

from __future__ import annotations

import argparse
from typing import Any

_HELP = """\
The learners write down which trajectories every update was trained on (table `trajectories`). From these rows lags,
env_steps and histograms are computed again and compared with everything else that the run says, over all attempts:
no lag above the bound or below 0, no trajectory trained twice, sums that add up, updates without a gap, a checksum
per update, and the configuration of the file and of config.json. Needs neither MPI nor torch; works on a run that was
killed or goes on; of an attempt that was, the last updates may not be complete in its file, which is said.

Runs with a replay memory have no lag contract: what is sampled may be of any age, and its lag is recorded instead.

exit codes: 0 proved, 1 not proved (the first row that contradicts is named), 2 RUN is no run, or has no lag contract
"""


def add_command(commands: Any) -> None:
    """Add `audit` to the commands of hpcrl."""
    parser = commands.add_parser(
        "audit",
        help="prove from the result file that no trained env_step was older than lag.max_lag",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="run directory, or the result file of one attempt")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    from hpcrl.audit.command import audit_command

    return audit_command(arguments.run, arguments.json)
