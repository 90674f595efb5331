"""Several runs at once: which there are in a folder, by which settings they differ, and what each is called."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrl.config import ConfigError
from hpcrl.storage import find_run

_NAMES = ("name", "scheme", "algorithm.name")
"""settings whose values say what they are"""


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


def run_labels(runs: Sequence[str | Path]) -> list[str]:
    """Short names of the runs, of their directories; whole paths where the short ones are not different."""
    folders = [find_run(run) for run in runs]
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def environments(runs: Sequence[str | Path]) -> list[str]:
    """Of each run the name of its environment; "unknown" where there is no config.json."""
    return [str((_config(run).get("env") or {}).get("id", "unknown")) for run in runs]


def setting_labels(
    runs: Sequence[str | Path], by: Sequence[str] = (), *, ignore: Sequence[str] = ()
) -> list[str]:
    """Of each run the name of its setting, which the runs that differ by seed or environment alone share.

    Only as many settings are named as tell the runs of one environment apart, `algorithm.name` first; `by` names others
    (dotted keys), `ignore` sections that do not matter. Where nothing differs it is the runs' common name. Raises
    ConfigError for a key that no run has.
    """
    configs = [dict(_flat(_config(run))) for run in runs]
    known = dict.fromkeys(key for config in configs for key in config)
    for key in by:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3)
            hint = f"near: {', '.join(near)}" if near else "config.json lists them"
            raise ConfigError(f"no run has a setting {key!r}; {hint}")
    keys = list(by) or _telling_keys(configs, ("seed", *ignore))
    if not keys:
        names = {str(config.get("name") or config.get("algorithm.name") or "run") for config in configs}
        return [", ".join(sorted(names))] * len(runs)
    short = {key: key.rpartition(".")[2] for key in keys}
    twice = {name for name in short.values() if list(short.values()).count(name) > 1}
    written = {key: key if name in twice else name for key, name in short.items()}
    return [
        ", ".join(
            str(value) if key in _NAMES else f"{written[key]}={value}"
            for key in keys
            if (value := config.get(key)) is not None
        )
        or f"{written[keys[0]]} not set"
        for config in configs
    ]


def _telling_keys(configs: Sequence[Mapping[str, Any]], ignore: tuple[str, ...]) -> list[str]:
    """As few keys as tell apart the runs of each environment that differ by more than the seed."""
    keys = list(dict.fromkeys(key for config in configs for key in config if not key.startswith(ignore)))
    # a key that is not there says nothing: other algorithms have none, nor have older versions
    differing = [key for key in keys if len({repr(config[key]) for config in configs if key in config}) > 1]
    # the first are kept longest; a name says less than what it was made from
    differing.sort(key=lambda key: (key != "algorithm.name", key != "scheme", key == "name"))

    def groups(chosen: Sequence[str]) -> int:
        return len({repr([config.get("env.id"), *(config.get(key) for key in chosen)]) for config in configs})

    whole = groups(differing)
    for key in reversed(differing):
        fewer = [other for other in differing if other != key]
        if groups(fewer) == whole:
            differing = fewer
    return differing


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
