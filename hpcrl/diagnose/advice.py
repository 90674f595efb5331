"""What to change: a key and a value that the run's own configuration allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcrl.config import ConfigError, RunConfig, set_dotted


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to do."""

    text: str
    """For a person, with the setting in it where it is one."""
    key: str | None = None
    value: Any = None


def setting(key: str, value: Any, why: str = "") -> Change:
    """`key=value`, as `--set` takes it, and why."""
    said = value if isinstance(value, str) else json.dumps(value)
    return Change(f"{key}={said}" + (f": {why}" if why else ""), key, value)


def allowed(config: dict[str, Any], changes: Sequence[Change]) -> Change:
    """The first of these that leaves the configuration one that could run; those without a key always do. Pure.

    The last one where none does: a configuration that cannot be checked here, as of an algorithm of the user's.
    """
    for change in changes:
        if change.key is None or _accepted(config, change.key, change.value):
            return change
    return changes[-1]


def read(config: dict[str, Any], dotted: str, default: Any = None) -> Any:
    """The value of a dotted key in a configuration as a dictionary; `default` where it is not there or None."""
    node: Any = config
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return default if node is None else node


def lower_rate(config: dict[str, Any], why: str) -> Change:
    """A third of the learning rate: half an order of magnitude, the usual step of a search over them."""
    rate = float(read(config, "algorithm.learning_rate", 3e-4))
    return setting("algorithm.learning_rate", rounded(rate / 3), f"a third of {rate:g}; {why}")


def check_env(config: dict[str, Any]) -> str:
    """The command that tests the environments of a run."""
    engine, name = read(config, "env.engine", "gymnasium"), read(config, "env.id", "ENV")
    return f"hpcrl check {name}" if engine == "custom" else f"hpcrl check {engine}:{name}"


def _accepted(config: dict[str, Any], key: str, value: Any) -> bool:
    values = json.loads(json.dumps(config))
    if read(values, key) == value:
        return False
    try:
        set_dotted(values, key, value)
        RunConfig.parse(values)
    except ConfigError:
        return False
    return True


def rounded(value: float) -> float:
    """Two significant digits: numbers that a person would choose."""
    return float(f"{value:.2g}")
