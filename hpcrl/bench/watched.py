"""`hpcrl bench watch`: whether a run is as fast while others read its result file."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from hpcrl.config import ConfigError, RunConfig

_SHORTEST_LIFE_S, _LONGEST_LIFE_S = 0.5, 3.0


def bench_watched(
    config: RunConfig, rounds: int, every_s: float, measure: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """env_steps/s of whole runs, alone and beside `hpcrl watch`, in turn; which comes first changes every round.

    The reader looks every `every_s` s, is killed after a random time of up to some seconds, and another one begins. It
    runs only where a core is idle: it is to take time from nobody. Where the machine has other work, CPU time says more
    than speed. `measure`: as `run_end_to_end`. Raises ConfigError where nothing is measured.
    """
    if rounds < 1 or every_s <= 0:
        raise ConfigError(f"rounds={rounds} must be at least 1, and every={every_s:g} s above 0")
    raw: list[dict[str, Any]] = []
    for index in range(rounds):
        killed: list[int] = []
        beside = partial(readers, every_s=every_s, seed=index, killed=killed)
        order = ("alone", "watched") if index % 2 == 0 else ("watched", "alone")
        found = {name: measure(config, beside) if name == "watched" else measure(config) for name in order}
        raw.append({**_ratios(found["alone"], found["watched"]), "killed_readers": len(killed), **found})
    median = {name: statistics.median(one[name] for one in raw) for name in ("speed_ratio", "cpu_ratio")}
    return {"recipe": config.name, "every_s": every_s, **median, "rounds": raw}


def _ratios(alone: dict[str, Any], watched: dict[str, Any]) -> dict[str, float]:
    return {
        "speed_ratio": watched["env_steps_per_s"] / alone["env_steps_per_s"],
        "cpu_ratio": watched["cpu_s"] / alone["cpu_s"],
    }


@contextmanager
def readers(run: Path, *, every_s: float, seed: int, killed: list[int]) -> Iterator[None]:
    """One reader after the other, each killed; `killed` gets their exit codes."""
    over = threading.Event()
    thread = threading.Thread(target=_kill_readers, args=(run, every_s, random.Random(seed), killed, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _kill_readers(
    run: Path, every_s: float, choice: random.Random, killed: list[int], over: threading.Event
) -> None:
    command = [sys.executable, "-P", "-m", "hpcrl", "watch", str(run)]
    while not over.is_set():
        with subprocess.Popen([*command, "--every", str(every_s)], stdout=subprocess.DEVNULL) as reader:
            os.sched_setscheduler(reader.pid, os.SCHED_IDLE, os.sched_param(0))
            over.wait(choice.uniform(_SHORTEST_LIFE_S, _LONGEST_LIFE_S))
            reader.kill()
        killed.append(reader.returncode)


def render(result: dict[str, Any]) -> Table:
    """The result as a table."""
    title = (
        f"{result['recipe']}: a look every {result['every_s']:g} s; watched, it has {result['speed_ratio']:.3f} x the "
        f"env_steps/s and {result['cpu_ratio']:.3f} x the CPU time"
    )
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for name in ("round", "alone, env_steps/s", "watched", "ratio", "CPU time", "readers killed"):
        table.add_column(name, justify="right")
    for number, one in enumerate(result["rounds"], 1):
        speeds = (f"{one[name]['env_steps_per_s']:,.0f}" for name in ("alone", "watched"))
        ratios = (f"{one[name]:.3f} x" for name in ("speed_ratio", "cpu_ratio"))
        table.add_row(str(number), *speeds, *ratios, str(one["killed_readers"]))
    return table
