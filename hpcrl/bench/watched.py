"""`hpcrl bench watch`: whether a run is as fast while others read its result file."""

from __future__ import annotations

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

_LONGEST_LIFE_S = 3.0


def bench_watched(
    config: RunConfig, rounds: int, every_s: float, measure: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """env_steps/s of whole runs, alone and beside `hpcrl watch`, in turn; which comes first changes every round.

    The reader looks every `every_s` s, is killed after a random time of up to some seconds, and another one begins. It
    has the lowest priority: it is to take time from nobody but the file. `measure`: as `run_end_to_end`. Raises
    ConfigError where nothing is measured.
    """
    if rounds < 1 or every_s <= 0:
        raise ConfigError(f"rounds={rounds} must be at least 1, and every={every_s:g} s above 0")
    raw = []
    for index in range(rounds):
        killed: list[int] = []
        beside = partial(_readers, every_s=every_s, seed=index, killed=killed)
        order = ("alone", "watched") if index % 2 == 0 else ("watched", "alone")
        speeds = {
            name: measure(config, beside)["env_steps_per_s"]
            if name == "watched"
            else measure(config)["env_steps_per_s"]
            for name in order
        }
        raw.append(speeds | {"ratio": speeds["watched"] / speeds["alone"], "killed_readers": len(killed)})
    ratio = statistics.median(one["ratio"] for one in raw)
    return {"recipe": config.name, "every_s": every_s, "ratio": ratio, "rounds": raw}


@contextmanager
def _readers(run: Path, *, every_s: float, seed: int, killed: list[int]) -> Iterator[None]:
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
    command = ["nice", "-n", "19", sys.executable, "-P", "-m", "hpcrl", "watch", str(run)]
    while not over.is_set():
        with subprocess.Popen([*command, "--every", str(every_s)], stdout=subprocess.DEVNULL) as reader:
            over.wait(choice.uniform(0.5, _LONGEST_LIFE_S))
            reader.kill()
        killed.append(reader.returncode)


def render(result: dict[str, Any]) -> Table:
    """The result as a table."""
    title = (
        f"{result['recipe']}: a look every {result['every_s']:g} s; watched is {result['ratio']:.3f} x alone"
    )
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for name in ("round", "alone", "watched", "ratio", "readers killed"):
        table.add_column(name, justify="right")
    for number, one in enumerate(result["rounds"], 1):
        speeds = (f"{one[name]:,.0f}" for name in ("alone", "watched"))
        table.add_row(str(number), *speeds, f"{one['ratio']:.3f}", str(one["killed_readers"]))
    return table
