"""`hpcrl audit`: the verdict on a run's lag contract, for people and scripts."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hpcrl.storage import Audit

_HELP = """\
The learners write down which trajectories every update was trained on (table `trajectories`). From these rows lags,
env_steps and histograms are computed again and compared with everything else that the run says, over all attempts:
no lag above the bound or below 0, no trajectory trained twice, sums that add up, updates without a gap, a checksum
per update, and the configuration of the file and of config.json. Needs neither MPI nor torch; works on a run that was
killed or goes on, of which the last updates may not be complete in the file.

exit codes: 0 proved, 1 not proved (the first row that contradicts is named), 2 RUN is no run
"""

_MAX_LAGS = 12


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
    from rich.console import Console

    from hpcrl.storage import audit

    found = audit(arguments.run)
    if arguments.json:
        sys.stdout.write(json.dumps(found.to_dict(), indent=2) + "\n")
    else:
        Console().print(render_audit(found))
    return 0 if found.proved else 1


def render_audit(found: Audit) -> RenderableType:
    """Lay out the verdict for rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from hpcrl.storage.shares import shares_text

    verdict = Text("proved", "bold green") if found.proved else Text("NOT PROVED", "bold red")
    bound = "unknown" if found.max_lag is None else f"lag.max_lag={found.max_lag}"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    lags = sorted(found.histogram)
    span = (
        f"{lags[0]} to {lags[-1]} updates, mean {found.lag_mean:.3f}"
        if lags
        else "no env_step was trained on"
    )
    for label, text in (
        ("updates", f"{found.updates:,}"),
        ("env_steps", f"{found.env_steps:,}"),
        ("lag", f"{span}; bound: {bound}"),
        *((f"  {lag}", _bar(found.histogram[lag], found.env_steps)) for lag in lags[:_MAX_LAGS]),
        ("actors", shares_text(found.actors)),
        *(("not looked at", note) for note in found.notes),
        *(("violation", line) for line in found.violations),
    ):
        grid.add_row(label, Text(text))
    if len(lags) > _MAX_LAGS:
        grid.add_row("", f"… and {len(lags) - _MAX_LAGS} larger lags")
    return Group(Text.assemble((found.run, "bold"), "  lag contract ", verdict), grid)


def _bar(count: int, total: int) -> str:
    return f"{'█' * round(30 * count / total):30} {count:,} env_steps, {100 * count / total:.1f} %"
