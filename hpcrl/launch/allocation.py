"""When the Slurm allocation of this process ends, from the environment or from one call of `scontrol`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime

_LONGEST_ANSWER_S = 20.0


def allocation_end(environ: Mapping[str, str] | None = None) -> float | None:
    """End of the allocation in seconds since the epoch; None outside a Slurm job, without a limit, or unknown."""
    env = os.environ if environ is None else environ
    stated = env.get("SLURM_JOB_END_TIME", "")
    if stated.isdigit():
        return float(stated)
    job = env.get("SLURM_JOB_ID", "")
    if not job:
        return None
    if (
        "SLURM_ARRAY_JOB_ID" in env
    ):  # the number of one task is the array's, for which all tasks would be shown
        job = f"{env['SLURM_ARRAY_JOB_ID']}_{env.get('SLURM_ARRAY_TASK_ID', '')}"
    command = ["scontrol", "show", "job", job]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_LONGEST_ANSWER_S, check=False, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return end_time(answer.stdout) if answer.returncode == 0 else None


def end_time(description: str) -> float | None:
    """`EndTime` of what `scontrol show job` prints, which is local time; None where it is Unknown. Pure."""
    found = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", description)
    return datetime.fromisoformat(found.group(1)).timestamp() if found else None
