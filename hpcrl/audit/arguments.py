"""The command lines of `hpcrl audit`, `verify`, `salvage`, `merge` and `trace`. Loads nothing that reads files."""

from __future__ import annotations

import argparse
from typing import Any

from hpcrl.config.command_line import add_run_command

_RUN_OR_FILE = "run directory, or the result file of one attempt"

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
    text = "prove from the result file that no trained env_step was older than lag.max_lag"
    add_run_command(commands, "audit", _command, text, epilog=_HELP, run=_RUN_OR_FILE, json=True)


_VERIFY_HELP = """\
Looks at everything that a run has left: each result file's schema and the hash of every row that counts; updates
without a gap, env_steps, lags and checksums as `hpcrl audit`; whether each attempt goes on from where one before came
to; hashes of checkpoints, of status.json and of stored models, and the evaluations of these; and whether status.json,
config.json and provenance.json agree with the files. Works on a run that goes on.

exit codes: 0 all is as it was written, 1 something is not (file, table and rows are named), 2 RUN is no run
"""

_SALVAGE_HELP = """\
A writer that was killed leaves its file marked as being written: hpcrl reads it as it is, other programs refuse it.
Such files are made anew from the rows that count and replaced; the originals stay beside them, as NNN.h5.killed. What
had to be left out is said. A second call finds nothing to do.

exit codes: 0 done or nothing to do, 1 rows were damaged or a file cannot be read at all, 2 RUN is no run or is written
"""


_TRACE_HELP = """\
A run has a trace when it was started with it; the rest of its life does not cost anything more:

  hpcrl run jobs/cartpole.py:impala --set profile.trace=true --set profile.trace_s=20
  hpcrl trace runs/cartpole-impala-0-001 trace.json

Open the file in https://ui.perfetto.dev or chrome://tracing. A process is a rank, a slice a hop (analysis/README.md
says what each is), and all clocks are those of rank 0. Works while the run goes on and after a kill; the file of one
rank, RUN/trace/ATTEMPT/RANK.json, can be opened by itself, too.

exit codes: 0 written, 2 RUN has no trace, or OUT.json cannot be written
"""


def add_file_commands(commands: Any) -> None:
    """Add `verify`, `salvage`, `merge` and `trace` to the commands of hpcrl."""
    text = "whether result files and checkpoints of a run are as they were written"
    add_run_command(commands, "verify", _verify, text, epilog=_VERIFY_HELP, run=_RUN_OR_FILE, json=True)
    text = "make files that a killed run has left readable for every program"
    add_run_command(commands, "salvage", _salvage, text, epilog=_SALVAGE_HELP, run=_RUN_OR_FILE)
    text = "all attempts of a run joined in one plain file, for a laptop"
    merge = add_run_command(commands, "merge", _merge, text)
    merge.add_argument("out", metavar="OUT.h5", help="the file; one made by `merge` before is replaced")
    text = "what each rank did when, for Chrome or Perfetto"
    trace = add_run_command(commands, "trace", _trace, text, epilog=_TRACE_HELP)
    trace.add_argument("out", metavar="OUT.json", help="the file; what was there is replaced")
    trace.add_argument(
        "--attempt", type=int, metavar="N", help="of which attempt (default: the last that has one)"
    )


def _verify(arguments: argparse.Namespace) -> int:
    from hpcrl.audit.file_commands import verify_command

    return verify_command(arguments.run, arguments.json)


def _salvage(arguments: argparse.Namespace) -> int:
    from hpcrl.audit.file_commands import salvage_command

    return salvage_command(arguments.run)


def _merge(arguments: argparse.Namespace) -> int:
    from hpcrl.audit.file_commands import merge_command

    return merge_command(arguments.run, arguments.out)


def _trace(arguments: argparse.Namespace) -> int:
    from hpcrl.audit.file_commands import trace_command

    return trace_command(arguments.run, arguments.out, arguments.attempt)


def _command(arguments: argparse.Namespace) -> int:
    from hpcrl.audit.command import audit_command

    return audit_command(arguments.run, arguments.json)
