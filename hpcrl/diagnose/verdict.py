"""A diagnosis: the bottleneck, the findings, and what could not be told."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcrl.diagnose.bottleneck import Bottleneck, find_bottleneck
from hpcrl.diagnose.finding import SEVERITIES, Finding, Rule
from hpcrl.diagnose.rules import RULES
from hpcrl.diagnose.view import CannotTell, View, read_view


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `diagnose` found."""

    view: View
    bottleneck: Bottleneck | None
    findings: list[tuple[Rule, Finding]]
    """Worst first."""
    unknown: dict[str, str]
    """Rule, or "bottleneck", -> why it could not tell."""

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        view, narrow = self.view, self.bottleneck
        found: dict[str, Any] = {
            "run": str(view.run),
            "status": view.status["status"],
            "attempt": view.attempt,
            "updates": len(view["updates"]),
            "bottleneck": None if narrow is None else asdict(narrow),
            "findings": [
                {
                    "rule": rule.name,
                    "severity": rule.severity,
                    "what": finding.what,
                    "change": asdict(finding.change),
                    "looks_at": rule.looks_at,
                    "threshold": rule.threshold,
                    "numbers": finding.numbers,
                }
                for rule, finding in self.findings
            ],
            "unknown": self.unknown,
        }
        return {key: _plain(value) for key, value in found.items()}


def diagnose(path: str | Path) -> Diagnosis:
    """Look at the run that `path` names, in whatever state it is. Raises ConfigError when it is none."""
    return examine(read_view(path))


def examine(view: View) -> Diagnosis:
    """Find the bottleneck and apply every rule. Pure."""
    unknown: dict[str, str] = {}
    bottleneck = None
    try:
        bottleneck = find_bottleneck(view)
    except CannotTell as reason:
        unknown["bottleneck"] = str(reason)
    findings = []
    for rule in sorted(RULES, key=lambda one: SEVERITIES.index(one.severity)):
        try:
            finding = rule.check(view)
        except CannotTell as reason:
            unknown[rule.name] = str(reason)
            continue
        if finding is not None:
            findings.append((rule, finding))
    return Diagnosis(view, bottleneck, findings, unknown)


def _plain(value: Any) -> Any:
    """None for what JSON cannot say."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
