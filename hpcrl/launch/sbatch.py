"""`hpcrl render` and `hpcrl submit`: the script printed, or handed to Slurm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcrl.config import ConfigError, load_site
from hpcrl.launch.batch import BatchJob, Wishes, plan_job, render


def render_command(recipe: str, overrides: Sequence[str], site: str, wishes: Wishes) -> int:
    """Print the script; the exit code. Needs neither MPI, torch nor Slurm."""
    sys.stdout.write(render(_plan(recipe, overrides, site, wishes)))
    return 0


def submit_command(recipe: str, overrides: Sequence[str], site: str, wishes: Wishes) -> int:
    """Hand the script to sbatch and print what became of it; the exit code."""
    job = _plan(recipe, overrides, site, wishes)
    job_id = send(render(job))
    values = {"%j": job_id, "%A": job_id, "$SLURM_JOB_ID": job_id, "$SLURM_ARRAY_JOB_ID": job_id}
    values |= {"%a": "SEED", "$SLURM_ARRAY_TASK_ID": "SEED"}
    log, run_dir = str(job.folder / job.log), job.run_dir
    for pattern, value in values.items():
        log, run_dir = log.replace(pattern, value), run_dir.replace(pattern, value)
    sys.stdout.write(f"job {job_id}: {job.in_words()}\nlog {log}\nrun {run_dir}\n")
    return 0


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
