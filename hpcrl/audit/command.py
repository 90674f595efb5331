"""The verdict on a run's lag contract, for people and scripts."""

from __future__ import annotations

import json
import sys

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.audit.verdict import Audit, audit
from hpcrl.storage.shares import shares_text

_MAX_LAGS = 12


def audit_command(run: str, as_json: bool) -> int:
    """Print the verdict; 0 where the contract is proved, else 1. Raises ConfigError when there is no run."""
    found = audit(run)
    if as_json:
        sys.stdout.write(json.dumps(found.to_dict(), indent=2) + "\n")
    else:
        Console().print(render_audit(found))
    return 0 if found.proved else 1


def render_audit(found: Audit) -> RenderableType:
    """Lay out the verdict for rich."""
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
