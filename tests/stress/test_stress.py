"""Random runs in one set of twelve ranks; `pytest -m stress` makes 200 of them (minutes)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.launch.launcher import find_launcher, permissions

TOP = Path(__file__).parents[2]
RANKS = 12


def stress(runs, seed, timeout_s):
    command = [find_launcher(), "-n", str(RANKS), sys.executable, "-m", "mpi4py", "-m", "tests.stress.worlds"]
    return subprocess.run(
        [*command, str(runs), str(seed), "-v"],
        cwd=TOP,
        env=os.environ | permissions() | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def check(ended, runs):
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-8000:]
    last = ended.stdout.splitlines()[-1]
    assert last.startswith(f"{runs} runs ended") and last.endswith("none lost, none twice")
    print(last)  # noqa: T201 - what was run


def test_some_random_runs():
    check(stress(12, seed=3, timeout_s=300), 12)


@pytest.mark.stress
def test_two_hundred_random_runs():
    check(stress(200, seed=int.from_bytes(os.urandom(4), "little"), timeout_s=3600), 200)
