"""Sweeps: one run for every combination of the values of some keys. Pure, but for looking at the recipe."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hpcrl.config import ConfigError, RunConfig
from hpcrl.launch.recipes import load_config

_MOST = 10_000
"""Each is checked and stands in the script; more are a slip of the pen."""
_SEEDS = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")
_LONGEST_NAME = 200
"""File systems allow 255 bytes."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One run of a sweep, checked; or the only run, where nothing is swept."""

    assignments: tuple[str, ...]
    """`a.b=value` of every swept key."""
    config: RunConfig
    label: str
    """What the name of the run directory says of the assignments, beside name and seed, which it says anyway."""

    def run_name(self, number: str) -> str:
        """Name of the run directory: NAME-SEED-NUMBER, in a sweep NAME-KEY=VALUE,KEY=VALUE-SEED-NUMBER."""
        return "-".join([self.config.name, *filter(None, [self.label]), str(self.config.seed), number])


def parse_sweep(sweep: Sequence[str], seeds: str | None = None) -> tuple[dict[str, list[str]], int | None]:
    """The values of each key, as texts, and how many runs at a time (None: no matter) of `--sweep` and `--seeds`.

    `sweep`: of the form a.b=value,value,...; commas within brackets and quotes belong to a value. `seeds`, as
    `sbatch --array` takes numbers, come last, so that the seeds of one setting are neighbors.
    """
    axes: dict[str, list[str]] = {}
    for text in sweep:
        key, found, values = (part.strip() for part in text.partition("="))
        if not found or not key:
            raise ConfigError(f"--sweep {text!r} is not of the form section.key=value,value")
        if key in axes:
            raise ConfigError(f"--sweep {key}=... is there twice; name all its values in one")
        axes[key] = [value.strip() for value in _split(values)]
        if "" in axes[key]:
            raise ConfigError(f"--sweep {text!r} has an empty value")
    if seeds is None:
        return axes, None
    if "seed" in axes:
        raise ConfigError("--sweep seed=... and --seeds contradict each other; leave one out")
    if not _SEEDS.fullmatch(seeds):
        raise ConfigError(f"--seeds {seeds!r} is not of a form like 0-4, 1,5,9 or 0-9%2 (two at a time)")
    ranges, _, at_once = seeds.partition("%")
    numbers = [_range(part) for part in ranges.split(",")]
    _check_number(sum(map(len, numbers)), f"--seeds {seeds}")
    axes["seed"] = [str(seed) for part in numbers for seed in part]
    return axes, int(at_once) if at_once else None


def combine(
    recipe: str | RunConfig,
    overrides: Sequence[str],
    num_ranks: int | None,
    axes: Mapping[str, Sequence[Any]],
) -> tuple[Combination, ...]:
    """Every combination of the values of `axes`, the last key's changing fastest; without axes the one run.

    `axes`: dotted keys, and values as `--set` takes them, or Python's. Raises ConfigError, which names the combination,
    for what does not fit, is there twice, or needs another number of ranks than the others.
    """
    swept = {key: [_text(value) for value in values] for key, values in axes.items()}
    _check_axes(swept, overrides)
    base = load_config(recipe) if swept else recipe
    found: list[Combination] = []
    for values in product(*swept.values()):
        assignments = tuple(f"{key}={value}" for key, value in zip(swept, values, strict=True))
        try:
            config = load_config(base, [*overrides, *assignments], num_ranks)
        except ConfigError as error:
            raise (ConfigError(f"with {' '.join(assignments)}: {error}") if swept else error) from None
        found.append(Combination(assignments, config, _label(swept, values)))
    _check_apart(found)
    if len({one.run_name("") for one in found}) < len(found) or any(
        len(one.run_name("")) > _LONGEST_NAME for one in found
    ):
        found = [Combination(one.assignments, one.config, f"task{n}") for n, one in enumerate(found)]
    return tuple(found)


def _check_axes(swept: Mapping[str, Sequence[str]], overrides: Sequence[str]) -> None:
    _check_number(math.prod(map(len, swept.values())), "the sweep")
    if "storage.run_dir" in swept:
        raise ConfigError(
            "storage.run_dir is each run's own in a sweep; leave it out, or name storage.runs_dir"
        )
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in swept:
            raise ConfigError(f"{key} is set and swept (--set, --sweep, --seeds); leave one out")


def _check_number(runs: int, what: str) -> None:
    if not 1 <= runs <= _MOST:
        raise ConfigError(f"{what} is {runs} runs; use 1 to {_MOST}")


def _check_apart(found: Sequence[Combination]) -> None:
    """Every combination is a run of its own, and all of them fit into jobs of one size."""
    first = found[0]
    seen: dict[str, Combination] = {}
    for one in found:
        what = " ".join(one.assignments)
        same = seen.setdefault(one.config.to_json(), one)
        if same is not one:
            raise ConfigError(f"{' '.join(same.assignments)} and {what} are the same run; leave one out")
        if one.config.storage.run_dir is not None and len(found) > 1:
            raise ConfigError(
                f"storage.run_dir={one.config.storage.run_dir!r} is one directory for all runs of a sweep; name "
                "storage.runs_dir"
            )
        if one.config.world_size != first.config.world_size:
            raise ConfigError(
                f"{first.config.world_size} ranks with {' '.join(first.assignments)}, {one.config.world_size} with "
                f"{what}: all jobs of an array are of one size; submit these apart, or say --ranks"
            )


def _label(swept: Mapping[str, Sequence[str]], values: Sequence[str]) -> str:
    last = [key.rpartition(".")[2] for key in swept]
    parts = []
    for key, short, value in zip(swept, last, values, strict=True):
        if key not in ("name", "seed"):
            plain = re.sub(r"[^A-Za-z0-9.+_-]+", "_", value).strip("_")
            parts.append(f"{short if last.count(short) == 1 else key}={plain}")
    return ",".join(parts)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list | tuple) or value is None else str(value)


def _range(text: str) -> range:
    numbers, _, step = text.partition(":")
    first, _, last = numbers.partition("-")
    if step and not int(step):
        raise ConfigError(f"--seeds {text!r} has steps of 0; use 1 or more")
    return range(int(first), int(last or first) + 1, int(step or 1))


def _split(text: str) -> Iterator[str]:
    """What lies between the commas that are neither in brackets nor in double quotes."""
    begin, depth, quoted = 0, 0, False
    for place, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character in "[{") - (character in "]}")
            if character == "," and depth == 0:
                yield text[begin:place]
                begin = place + 1
    yield text[begin:]
