"""Real runs through the command line, and what they leave behind.

Every process of a run carries a token in its environment, so that orphans are found whatever started them.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.drill.runs import processes_with
from hpcrl.launch.launcher import find_launcher
from hpcrl.storage import read_table
from hpcrl.storage.summary import describe

TOP = Path(__file__).parents[2]
TOKEN = "HPCRL_TEST_TOKEN"
FOREVER = "budget.env_steps=1000000000"

TOY: dict[str, Any] = {
    "name": "toy",
    "env": {"id": "counting", "engine": "toy", "num_envs": 6},
    "model": {"hidden_sizes": [8]},
    "algorithm": {"name": "impala", "unroll_length": 8},
    "budget": {"env_steps": 400},
    "evaluation": {"episodes": 2},
    "storage": {"flush_interval_s": 0.1},
}
"""A run of about ten updates; what a test needs beside it is set on its command line."""

WITH_TESTS = {"PYTHONPATH": os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])}
"""Environment of a run that uses something of the tests."""


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    folder: Path
    """The working directory it was started in."""
    code: int
    stdout: str
    stderr: str
    run_dir: Path | None
    """The only run directory below the working directory; None when there is none."""

    def describe(self) -> dict[str, Any]:
        assert self.run_dir is not None, self.stderr
        return describe(self.run_dir)

    def table(self, name: str) -> Any:
        assert self.run_dir is not None, self.stderr
        return read_table(self.run_dir, name)

    def times(self) -> Any:
        """Rows of table timers that no later one replaces."""
        rows = self.table("timers")[::-1]
        _, first = np.unique(rows[["role", "role_rank", "hop"]], return_index=True)
        return rows[np.sort(first)][::-1]

    def weights(self) -> str:
        """The one weights hash of all learners of a run that finished."""
        summary = self.describe()
        assert self.code == 0, self.stderr
        assert summary["weights_equal"], summary["weights_sha256"]
        return str(summary["weights_sha256"][0])

    def named_failures(self) -> list[str]:
        """Lines of hpcrl's own on the standard error."""
        return [line for line in self.stderr.splitlines() if line.startswith("hpcrl: ")]


class Running:
    """A run under way; made by `start`."""

    def __init__(self, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.token = uuid.uuid4().hex
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environ, TOKEN: self.token},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def run_dir(self) -> Path | None:
        found = sorted(path.parent for path in self.folder.glob("runs/*/config.json"))
        assert len(found) <= 1, found
        return found[0] if found else None

    def wait(self, timeout_s: float = 90.0) -> Ended:
        code = self.process.wait(timeout_s)
        return Ended(self.folder, code, self._out.read_text(), self._err.read_text(), self.run_dir)

    def until(self, ready: Any, timeout_s: float = 60.0) -> None:
        """Wait for `ready()`, but not for a run that has ended."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert self.process.poll() is None, f"ended too early: {self._err.read_text()}"
            assert time.monotonic() < deadline, f"not ready: {self._out.read_text()} {self._err.read_text()}"
            time.sleep(0.05)

    def until_updates(self, number: int) -> None:
        """Wait until a live reader of the result file sees so many updates."""
        self.until(lambda: self.run_dir is not None and len(read_table(self.run_dir, "updates")) >= number)

    def pids(self) -> dict[str, int]:
        """Process of each rank, by role and role_rank as in "actor 0"; from the result file."""
        assert self.run_dir is not None
        rows = read_table(self.run_dir, "ranks")
        return {f"{row['role'].decode()} {row['role_rank']}": int(row["pid"]) for row in rows}

    def processes(self) -> dict[int, str]:
        """Living processes of this run: pid and command line."""
        return processes_with(self.token)

    def kill_everything(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def start(
    folder: Path,
    *settings: str,
    recipe: str | Mapping[str, Any] = TOY,
    ranks: int | None = None,
    mpiexec: int | None = None,
    resume: str | None = None,
    environ: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Iterator[Running]:
    """Start `hpcrl run` in `folder` with --set for every setting; nothing of it outlives the block.

    `recipe`: what to run, or values that are written to a JSON file first. `ranks`: --ranks. `mpiexec`: start that
    many ranks by the launcher instead of letting `hpcrl run` do it. `resume`: --resume. `python`: of another
    environment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not isinstance(recipe, str):
        (folder / "job.json").write_text(json.dumps(recipe))
        recipe = "job.json"
    command = [python, "-m", "hpcrl", "run", recipe]
    for setting in settings:
        command += ["--set", setting]
    if ranks is not None:
        command += ["--ranks", str(ranks)]
    if resume is not None:
        command += ["--resume", resume]
    if mpiexec is not None:
        command = [find_launcher(), "-n", str(mpiexec), *command]
    running = Running(command, folder, environ or {})
    try:
        yield running
    finally:
        running.kill_everything()


def run(folder: Path, *settings: str, timeout_s: float = 90.0, **how: Any) -> Ended:
    """A whole run; checks that no process of it is left."""
    with start(folder, *settings, **how) as running:
        ended = running.wait(timeout_s)
        assert_gone(running)
    return ended


def assert_gone(running: Running, within_s: float = 3.0) -> None:
    """No process of the run lives any more."""
    deadline = time.monotonic() + within_s
    while left := running.processes():
        assert time.monotonic() < deadline, f"still alive: {left}"
        time.sleep(0.05)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lags(ended: Ended) -> list[int]:
    """Every lag that a trained env_step had, in updates, ascending."""
    rows = ended.table("lag")
    return sorted(int(lag) for lag in np.unique(rows["lag"][rows["env_steps"] > 0]))
