"""A diagnosis on the screen, for people and scripts."""

from __future__ import annotations

import json
import sys
from collections import defaultdict

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.diagnose.bottleneck import Bottleneck
from hpcrl.diagnose.verdict import Diagnosis, diagnose

_STYLES = {"wrong": "bold red", "harmful": "bold yellow", "costly": "bold cyan"}
_MAX_HOPS = 4


def diagnose_command(run: str, as_json: bool) -> int:
    """Print the diagnosis; 0 where nothing is wrong, else 1. Raises ConfigError when there is no run."""
    found = diagnose(run)
    if as_json:
        sys.stdout.write(json.dumps(found.to_dict(), indent=2, allow_nan=False) + "\n")
    else:
        Console().print(render(found))
    return 1 if found.findings else 0


def render(found: Diagnosis) -> RenderableType:
    """Lay out a diagnosis for rich: what is wrong, worst first, then the bottleneck, then what could not be told."""
    view = found.view
    head = Text.assemble((view.get("name") or str(view.run), "bold"), f"  {view.status['status']}")
    head.append(f", {len(view['updates']):,} updates of attempt {view.attempt}")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for rule, finding in found.findings:
        grid.add_row(Text(rule.severity, _STYLES[rule.severity]), Text(f"{finding.what}."))
        grid.add_row(Text(rule.name, "dim"), Text.assemble(("change: ", "green"), finding.change.text))
    if not found.findings:
        grid.add_row(Text("well", "bold green"), Text("nothing is wrong with what could be looked at"))
    if found.bottleneck is not None:
        _add_bottleneck(grid, found.bottleneck)
    for reason, rules in _by_reason(found.unknown).items():
        grid.add_row(Text("cannot tell", "dim"), Text(f"{', '.join(rules)}: {reason}", "dim"))
    return Group(head, grid)


def _add_bottleneck(grid: Table, found: Bottleneck) -> None:
    where = f"{found.part}: {found.hop} of {found.rank}"
    grid.add_row(Text("bottleneck", "bold blue"), Text(where, "bold"))
    for sentence in found.evidence:
        grid.add_row("", Text(sentence))
    hops = [f"{hop} {100 * share:.1f} %" for hop, share in list(found.hops.items())[:_MAX_HOPS]]
    grid.add_row("", Text(f"{found.rank}: {', '.join(hops)}", "dim"))
    grid.add_row("", Text.assemble(("faster by: ", "green"), found.change.text))


def _by_reason(unknown: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for rule, reason in unknown.items():
        found[reason].append(rule)
    return found
