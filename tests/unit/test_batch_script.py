"""slurm/train.sbatch with stand-ins for the launchers: what it starts, and how it ends."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "slurm" / "train.sbatch"
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "it"}


@pytest.fixture
def start(tmp_path):
    """Run the script; srun, or hpcrl in its place, prints its arguments and ends with the given code."""

    def run(*arguments, code=0, **environment):
        for launcher in ("srun", "hpcrl"):
            path = tmp_path / launcher
            path.write_text(
                f'#!/bin/sh\necho "{launcher}: $@"\necho "threads: $OMP_NUM_THREADS"\nexit {code}\n'
            )
            path.chmod(0o755)
        outside = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLURM_", "OMP_", "HPCRL_"))
        }
        return subprocess.run(
            ["bash", str(SCRIPT), *arguments],
            env={
                **outside,
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NAME": "it",
                "PATH": f"{tmp_path}:{outside['PATH']}",
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_srun_gets_the_recipe_and_every_option(start):
    finished = start("jobs/cartpole.py:impala", "--set", "seed=3", "--set", 'env.kwargs={"a b": 1}')
    assert finished.stdout.splitlines()[0] == (
        "srun: --mpi=pmi2 --kill-on-bad-exit=1 hpcrl run --resume if-exists --set storage.run_dir=runs/it-7 "
        "jobs/cartpole.py:impala --set seed=3 "
        '--set env.kwargs={"a b": 1}'
    )


@pytest.mark.parametrize(("launcher", "program"), [("srun", "srun"), ("mpiexec", "hpcrl")])
@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 75])
def test_exit_code_is_that_of_the_run(start, launcher, program, code):
    finished = start("a.py:b", code=code, HPCRL_LAUNCHER=launcher)
    assert finished.returncode == code
    assert finished.stdout.startswith(f"{program}: ")


def test_a_launcher_that_killed_the_other_ranks_means_a_rank_failed(start):
    assert start("a.py:b", code=137).returncode == 3


def test_hpcrl_itself_finds_mpiexec(start):
    finished = start("a.py:b", "--ranks", "7", HPCRL_LAUNCHER="mpiexec")
    assert " a.py:b --ranks 7\n" in finished.stdout and finished.stdout.startswith("hpcrl: run ")


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"SLURM_CPUS_PER_TASK": "4"}, "4")])
def test_threads_follow_cpus_per_task(start, given, threads):
    assert f"threads: {threads}" in start("a.py:b", **given).stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ((), {}, "usage: sbatch"),
        (("a.py:b",), {"HPCRL_LAUNCHER": "mpirun"}, "HPCRL_LAUNCHER=mpirun is unknown"),
    ],
)
def test_what_cannot_start_says_why(start, arguments, environment, message):
    finished = start(*arguments, **environment)
    assert finished.returncode != 0
    assert message in finished.stderr
    assert finished.stdout == ""


def test_it_is_a_bash_script_with_a_time_limit():
    text = SCRIPT.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\n#SBATCH --time=" in text
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
