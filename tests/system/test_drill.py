"""`hpcrl drill` on real runs: everything holds, and with a protection switched off the exercise that needs it fails."""

import json
import os
import subprocess
import sys

import pytest

from hpcrl.config.protections import PROTECTIONS
from tests.system.support import TOP, TOY

NEEDED_BY = {
    "atomic-rename": ("kill-save", "a torn checkpoint bears its final name"),
    "checkpoint-hashes": ("corrupt", "it was not resumed at update"),
    "finite-check": ("nan", "ended with exit code"),
    "ownership": ("second-writer", "the second writer was let in"),
    "signal-handlers": ("signal", "ended with exit code 3, not 75"),
    "supervisor": ("kill", "nobody says that"),
    "watchdog": ("stall", "still running"),
}


def drill(folder, *arguments):
    (folder / "job.json").write_text(json.dumps(TOY))
    command = [sys.executable, "-m", "hpcrl", "drill", "job.json", "--stall-timeout", "1.5", "--json"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{TOP}"}
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done, json.loads(done.stdout or "{}")


@pytest.mark.faults
def test_everything_holds(tmp_path):
    done, printed = drill(tmp_path)
    assert done.returncode == 0, done.stderr
    assert {one["outcome"] for one in printed["findings"]} == {"held"}, printed
    assert "actor 0 (rank 2)" in printed["findings"][0]["detail"]
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_without_a_protection_the_exercise_that_needs_it_fails(tmp_path, protection):
    exercise, seen = NEEDED_BY[protection]
    one_process = ("--ranks", "1", "--bound", "4")
    done, printed = drill(tmp_path, "--without", protection, "--only", exercise, *one_process)
    assert done.returncode == 1, done.stderr
    (finding,) = printed["findings"]
    assert (finding["exercise"], finding["outcome"]) == (exercise, "failed")
    assert seen in finding["detail"]
    (first,) = (tmp_path / "runs").rglob("start-1.err")
    assert f"faults.without: {protection}" in first.read_text()
