"""What a run ran on: ranks, nodes, cores."""

from __future__ import annotations

from typing import Any

import pandas as pd

ROLES = {"actors": "actor", "replays": "replay", "learners": "learner", "workers": "worker"}


def used(ranks: pd.DataFrame) -> dict[str, Any]:
    """Of the table `ranks`, its last attempt: ranks, those of each role, nodes, cores (that the ranks may run on)."""
    last = ranks[ranks["attempt"] == ranks["attempt"].max()] if len(ranks) else ranks
    roles = last["role"].value_counts()
    found: dict[str, Any] = {"ranks": len(last)}
    found |= {name: int(roles.get(role, 0)) for name, role in ROLES.items()}
    return found | {"nodes": int(last["node"].nunique()), "cores": cores(last)}


def cores(ranks: pd.DataFrame) -> int:
    """How many different cores the ranks may run on, over all nodes; those whose cores are not known count as one."""
    seen: set[tuple[str, int]] = set()
    unknown = 0
    for node, text in zip(ranks["node"], ranks["cores"], strict=True):
        numbers = parse_cores(text)
        seen |= {(node, number) for number in numbers}
        unknown += not numbers
    return len(seen) + unknown


def parse_cores(text: str) -> set[int]:
    """The cores in ranges like "0-3,8"; empty where it says something else."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return set()
        found |= set(range(int(first), int(last or first) + 1))
    return found
