"""`hpcrl render` and `hpcrl submit`: the script printed, or handed to Slurm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpcrl.config import ConfigError, load_site
from hpcrl.launch.batch import BatchJob, Wishes, plan_job, render


def render_command(recipe: str, overrides: Sequence[str], site: str, wishes: Wishes) -> int:
    """Print the script; the exit code. Needs neither MPI, torch nor Slurm."""
    sys.stdout.write(render(_plan(recipe, overrides, site, wishes)))
    return 0


def submit_command(recipe: str, overrides: Sequence[str], site: str, wishes: Wishes, chain: int = 1) -> int:
    """Hand the script to sbatch and print what became of it; the exit code.

    `chain`: so many jobs for the one run, each of which starts when the one before has ended, however that was.
    """
    if chain < 1:
        raise ConfigError(f"--chain {chain} is no job; use 1 or more")
    job = _plan(recipe, overrides, site, wishes)
    numbers = [send(render(job))]
    try:
        while len(numbers) < chain:
            numbers.append(send(render(replace(job, first=numbers[0], previous=numbers[-1]))))
    except ConfigError as error:
        raise ConfigError(f"{error}; scancel {' '.join(numbers)} takes back what was sent before") from error
    sys.stdout.write(f"job {numbers[0]}: {job.in_words()}\n{_places(replace(job, first=numbers[0]))}")
    if chain > 1:
        sys.stdout.write(
            f"then {', '.join(numbers[1:])}: each goes on after the job before it, or ends at once when the run has "
            f"finished\nto end all: scancel {' '.join(numbers)}\n"
        )
    return 0


def _places(job: BatchJob) -> str:
    """Log and run directory of a job that was sent; of an array, those of each task in turn."""
    logs = (job.folder / job.log.replace("%a", str(number)) for number in range(len(job.tasks)))
    return "".join(f"log {log}\nrun {task.run_dir}\n" for log, task in zip(logs, job.tasks, strict=True))


def send(script: str) -> str:
    """Submit a script; the job's number. Raises ConfigError with sbatch's answer when it is refused."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ConfigError(
            f"sbatch cannot be started ({error.strerror}): submit on a login node of the cluster, or take the script "
            "there (`hpcrl render`)"
        ) from error
    if done.returncode != 0:
        raise ConfigError(f"sbatch refused the job: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]


def _plan(recipe: str, overrides: Sequence[str], site: str, wishes: Wishes) -> BatchJob:
    return plan_job(recipe, overrides, Path(site).stem, load_site(site), wishes, Path.cwd())
