"""A run of the plan for a while: what it does, and what the machine gave it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcrl.bench.plan.clocks import Clock, idle_s, most_resident_bytes, read_clock
from hpcrl.config import RunConfig
from hpcrl.storage import read_table
from hpcrl.storage.schema import Rows

_LOOK_S = 0.5
_ENDLESS = 10**12
"""env_steps: the run is stopped before."""
_WARM_UPDATES = 3
_END_S = 120.0
"""In which a run that is told to stop should have saved and ended."""
_LEAST_S = 3.0
"""Between the first and the last look that count."""


@dataclass(frozen=True, slots=True)
class Look:
    """At a run under way."""

    clock: Clock
    idle_s: float
    updates: int
    """That could be read."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of a run, from one update to another."""

    env_steps_per_s: float
    cpu_s_per_env_step: float
    """Of all its processes, those that only watch included."""
    cores: float
    """That its processes had, or could have had: what others did meanwhile is not in it."""
    lag_mean: float
    env_steps: int
    """Of the run, when it was last looked at."""
    seconds: float
    resident_bytes: dict[str, int]
    """The largest of each role."""


def run_for(config: RunConfig, num_ranks: int, seconds: float) -> Measured:
    """Start the run as a user does, watch it for `seconds` after its first updates, and stop it in order.

    Raises RuntimeError with the end of its output where it ends before it could be measured.
    """
    with tempfile.TemporaryDirectory(prefix="hpcrl-plan-") as folder:
        run_dir = Path(folder) / "run"
        path = Path(folder) / "config.json"
        path.write_text(
            config.with_overrides(
                [
                    f"storage.run_dir={run_dir}",
                    "storage.flush_interval_s=0.5",
                    f"budget.env_steps={_ENDLESS}",
                    "evaluation.episodes=0",
                    "checkpoint.every_updates=null",
                    "checkpoint.every_seconds=null",
                ]
            ).to_json()
        )
        output = Path(folder) / "output"
        with output.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hpcrl", "run", str(path), "--ranks", str(num_ranks)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            try:
                looks, resident = _watch(process, run_dir, seconds)
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
                process.kill()  # of no account where it has ended; its ranks go with it
                process.wait()
        if len(looks) < 2 or looks[-1].clock.wall_s - looks[0].clock.wall_s < min(_LEAST_S, seconds):
            raise RuntimeError(
                f"the run ended with exit code {process.returncode} before it could be measured:\n"
                f"{output.read_text()[-2000:]}"
            )
        updates = read_table(run_dir, "updates")
    return measured(looks, updates, resident)


def _watch(
    process: subprocess.Popen[bytes], run_dir: Path, seconds: float
) -> tuple[list[Look], dict[str, int]]:
    """Looks from soon after the first updates on, and the memory of the ranks at the end. Ends with the process."""
    looks: list[Look] = []
    while process.poll() is None:
        time.sleep(_LOOK_S)
        updates = read_table(run_dir, "updates") if run_dir.is_dir() else ()
        if len(updates) < _WARM_UPDATES:
            continue
        clock = read_clock(process.pid)
        if process.poll() is None:  # else those that have left are not counted
            looks.append(Look(clock, idle_s(), len(updates)))
        if looks and looks[-1].clock.wall_s - looks[0].clock.wall_s >= seconds:
            break
    return looks, _resident(run_dir)


def measured(looks: Sequence[Look], updates: Rows, resident: dict[str, int]) -> Measured:
    """What `updates` (the table of that name, later rows too) and what was seen meanwhile say. Pure."""
    first, last = looks[0], looks[-1]
    begin, end = updates[first.updates - 1], updates[last.updates - 1]
    passed = last.clock - first.clock
    speed = float(end["env_steps"] - begin["env_steps"]) / float(end["time_s"] - begin["time_s"])
    between = updates[first.updates : last.updates]
    return Measured(
        env_steps_per_s=speed,
        cpu_s_per_env_step=passed.cpu_s / passed.wall_s / speed,
        cores=(passed.cpu_s + last.idle_s - first.idle_s) / passed.wall_s,
        lag_mean=float(between["lag_mean"].mean()),
        env_steps=int(end["env_steps"]),
        seconds=passed.wall_s,
        resident_bytes=resident,
    )


def _resident(run_dir: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in read_table(run_dir, "ranks") if run_dir.is_dir() else ():
        role = row["role"].decode()
        found[role] = max(found.get(role, 0), most_resident_bytes(int(row["pid"])))
    return found
