"""`hpcrl plan` without the measurements, which take processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrl.__main__ import main
from hpcrl.bench.plan import command
from hpcrl.bench.plan.calibrate import Rounds
from hpcrl.bench.plan.check import Look, measured
from hpcrl.bench.plan.clocks import Clock
from hpcrl.storage import TABLES
from tests.unit.bench.plan_support import calibration

CARTPOLE = str(Path(__file__).parents[3] / "jobs/cartpole.py:impala")


@pytest.fixture
def calibrated(monkeypatch):
    """The splits that were asked about; the machine has always been measured."""
    asked = []

    def measure_rounds(candidates, num_ranks, rounds, seconds):
        asked.append((len(candidates), num_ranks))
        return Rounds(waiting=(0.0,))

    def found(candidates, rounds):
        slow = 0.2 * (len(rounds.waiting) - 1)  # as if the machine was slower when measured again
        return calibration(act=0.8 + slow, learn=0.1, save_s=1.0, bytes={"resident/actor": 1e8})

    monkeypatch.setattr(command, "measure_rounds", measure_rounds)
    monkeypatch.setattr(command, "calibration", found)
    monkeypatch.setattr(command, "memory_limit", lambda: 10**10)
    return asked


def plan(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["plan", CARTPOLE, *arguments])
    out, err = capsys.readouterr()
    return exit_.value.code, out, err


def test_the_best_division_and_what_to_type(calibrated, capsys):
    code, out, _ = plan(capsys, "--ranks", "6", "--cores-per-node", "64", "--json")
    said = json.loads(out)
    assert code == 0 and calibrated[0][1] == 6
    assert said["set"] == "--set ranks.actors=4 --set ranks.replay=1 --set ranks.learners=1"
    assert said["best"]["env_steps_per_s"] >= said["others"][0]["env_steps_per_s"] > 0
    assert said["needs"]["node_hours"] > 0 and said["parts"] and said["findings"]


def test_for_people(calibrated, capsys):
    code, out, _ = plan(capsys, "--ranks", "4", "--nodes", "2", "--cores-per-node", "2")
    assert code == 0
    assert "4 ranks on 2 x 2 cores" in out and "node-hours" in out
    assert f"hpcrl run {CARTPOLE} --set ranks.actors=2" in out.replace("\n", " ").replace("  ", " ")


def test_the_recipes_own_division(calibrated, capsys):
    plan(capsys, "--as-is", "--set", "ranks.actors=5", "--json")
    assert calibrated == [(1, 7)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "2"], "2 ranks cannot be divided"),
        (["--ranks", "0"], "--ranks 0 must be above 0"),
        (["--nodes", "4", "--ranks", "3"], "3 ranks are too few for 4 nodes"),
        (["--cores-per-node", "-1"], "--cores-per-node -1 must be above 0"),
        (["--seconds", "0"], "--seconds 0 must be above 0"),
        (["--check", "--nodes", "2"], "--check runs here, on one node"),
        (["--set", "lag.max_lags=1"], "lag.max_lags"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(calibrated, capsys, arguments, words):
    code, _, err = plan(capsys, *arguments)
    assert (code, calibrated) == (2, [])
    assert words in err


def test_a_check_is_compared_for_the_cores_that_it_had(calibrated, capsys, monkeypatch):
    updates = TABLES["updates"].rows(
        9,
        update=range(1, 10),
        env_steps=1000 * np.arange(9),
        time_s=np.arange(9) / 2,
        lag_mean=1.0,
        applied=True,
    )
    looks = [Look(Clock(10, 100, 0), 50.0, 3), Look(Clock(12, 101, 0), 50.6, 7)]
    seen = measured(looks, updates, {"actor": 2 * 10**8})
    assert (seen.env_steps_per_s, seen.cpu_s_per_env_step) == (2000, 0.5 / 2000)
    assert (seen.cores, seen.lag_mean, seen.env_steps) == (pytest.approx(0.8), 1.0, 6000)
    monkeypatch.setattr(command, "run_for", lambda config, num_ranks, seconds: seen)
    code, out, _ = plan(capsys, "--ranks", "3", "--check", "--json")
    compared = {row["what"]: row for row in json.loads(out)["compared"]}
    speed = compared["env_steps/s, for the cores it had"]
    alone = json.loads(out)["best"]["env_steps_per_s"]
    assert code == 0 and speed["measured"] == 2000 and len(calibrated) == 2
    # 0.8 cores are too few for 1.1 s of work in 1.0 s, as which the rounds before and after it count
    assert speed["predicted"] == pytest.approx(alone * 0.8 * 0.8 / 1.1)
    assert compared["RAM of a rank (actor), MB"]["ratio"] == pytest.approx(0.5)
    _, text, _ = plan(capsys, "--ranks", "3", "--check")
    assert "it had 0.80 of" in text and "predicted/measured" in text


def test_a_measurement_that_fails_is_told_in_a_line(monkeypatch, capsys):
    def measure_rounds(*arguments):
        raise RuntimeError(
            "measure_whole ended with exit code 1: Traceback\n  File\nConfigError: env.id='x' is not known\n"
        )

    monkeypatch.setattr(command, "measure_rounds", measure_rounds)
    code, _, err = plan(capsys, "--ranks", "3")
    assert code == 1
    assert err.splitlines()[0] == "hpcrl: a measurement failed: ConfigError: env.id='x' is not known"


def test_help_and_refusals_need_neither_mpi_nor_torch(tmp_path):
    """P08: a login node may have neither."""
    for name in ("mpi4py", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise ImportError('no {name} on a login node')\n")
    for arguments, code, words in (
        (["--help"], 0, "--check"),
        ([CARTPOLE, "--ranks", "2"], 2, "--ranks 3, the smallest world"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "hpcrl", "plan", *arguments],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code and words in done.stdout + done.stderr
