"""Several runs at once: which there are in a folder, and by which settings they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrl.config import ConfigError
from hpcrl.storage import find_run


def find_runs(paths: Sequence[str | Path]) -> list[str | Path]:
    """Every path that is a run, and of a folder that is none the runs in it, by name.

    Raises ConfigError where there is no run.
    """
    found: list[str | Path] = []
    for path in paths:
        try:
            find_run(path)
            found.append(path)
        except ConfigError:
            inside = sorted(file.parent for file in Path(path).glob("*/config.json"))
            if not inside:
                raise
            found += inside
    return found


def differences(runs: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Of each run the settings that are not the same in all runs: dotted key -> value, None where there is no such key.

    Without `storage`, where every run has a place of its own. Lists are given as JSON.
    """
    settings = [dict(_flat(_config(run))) for run in runs]
    keys = dict.fromkeys(key for one in settings for key in one)
    differing = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    return [{key: one.get(key) for key in differing} for one in settings]


def _config(run: str | Path) -> dict[str, Any]:
    try:
        config = json.loads((find_run(run) / "config.json").read_text())
    except OSError:  # copied without it
        return {}
    return {key: value for key, value in config.items() if key != "storage"}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value) if isinstance(value, list) else value
