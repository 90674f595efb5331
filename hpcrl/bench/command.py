"""`hpcrl bench`: real runs as the end-to-end measurement, and the output."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from hpcrl.bench import equal, loop, scale, solve, watched
from hpcrl.config import RunConfig
from hpcrl.storage.runlog import read_table

Beside = Callable[[Path], AbstractContextManager[Any]]


def bench_recipe_command(config: RunConfig, options: argparse.Namespace) -> int:
    """Measure as `options` say (see bench.arguments), print a table or one JSON object, return the exit code."""
    rounds = options.rounds
    if options.what == "loop":
        result = loop.bench_loop(config, rounds, run_end_to_end)
        table = loop.render(result)
    elif options.what == "equal":
        result = equal.bench_equal(config, options.updates, rounds, run_end_to_end)
        table = equal.render(result)
    elif options.what == "solve":
        result = solve.bench_solve(
            config,
            options.score,
            rounds,
            every=options.every,
            reference_env_steps=options.reference_env_steps,
        )
        table = solve.render(result)
    elif options.what == "watch":
        result = watched.bench_watched(config, rounds, options.every, run_end_to_end)
        table = watched.render(result)
    else:
        result = scale.bench_scale(config, options.actors, rounds, run_end_to_end)
        table = scale.render(result)
    if options.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        Console().print(table)
    return 0


def run_end_to_end(config: RunConfig, beside: Beside = nullcontext) -> dict[str, Any]:
    """Run a whole world, learning on, results written, and measure it from the result file.

    The speed is that between the first and the last update: start-up and evaluation are not in it, waiting is. `cpu_s`:
    CPU time of all its processes, from their start.
    `beside`: made of the run directory, and entered while the run goes on.

    Raises RuntimeError with the end of the run's output when it does not finish.
    """
    with tempfile.TemporaryDirectory(prefix="hpcrl-bench-") as folder:
        run_dir = Path(folder) / "run"
        values = config.to_dict()
        values["storage"]["run_dir"] = str(run_dir)
        values["evaluation"]["episodes"] = 0
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(values))
        command = [sys.executable, "-P", "-m", "hpcrl", "run", str(path)]
        said = Path(folder) / "said.txt"
        with beside(run_dir), said.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(
                f"the run ended with exit code {process.returncode}:\n{said.read_text()[-2000:]}"
            )
        updates = read_table(run_dir, "updates")
    if len(updates) < 2:
        raise RuntimeError(
            f"the run made {len(updates)} updates; raise budget.env_steps to measure its speed"
        )
    env_steps = int(updates["env_steps"][-1] - updates["env_steps"][0])
    seconds = float(updates["time_s"][-1] - updates["time_s"][0])
    cpu_s = usage.ru_utime + usage.ru_stime
    speed = env_steps / seconds
    return {"env_steps_per_s": speed, "env_steps": env_steps, "seconds": seconds, "cpu_s": cpu_s}
