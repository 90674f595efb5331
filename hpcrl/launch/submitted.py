"""A run that was handed to an executor: how it stands, and what became of it after its last attempt."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.config import ExitCode
from hpcrl.storage.summary import describe

LOOK_EVERY_S = 30.0
"""How often Slurm is asked while somebody waits for a result; submitit itself asks every ten minutes in the end."""
_OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE"}
_OVER |= {"PREEMPTED", "REVOKED"}  # with these alone submitit would wait on


class RunFailedError(RuntimeError):
    """The job ended without finishing its run; the message has the exit code and the cause."""


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    """A run that was handed to an executor."""

    job: Any
    """The submitit job; of a chain the first."""
    run_dir: Path
    later: tuple[Any, ...] = ()
    """The other jobs of a chain, in turn."""

    def state(self) -> str:
        """The scheduler's word for how the job stands now; in Slurm PENDING also between two attempts.

        Of a chain: for the first job that is not over, else for the last.
        """
        for job in self._jobs[:-1]:
            if (state := _state(job)).split()[0] not in _OVER:
                return state
        return _state(self._jobs[-1])

    def result(self) -> dict[str, Any]:
        """Wait for the end, in Slurm over all attempts and jobs; the run's summary (`hpcrl describe --json`).

        Raises RunFailedError when the job, or all of a chain, is over and the run has not finished.
        """
        code = None
        for one in self._jobs:
            code = _code(one)
            if code == ExitCode.FINISHED:
                return describe(self.run_dir)
        job = f"the job, which is {self.state()}," if _in_slurm(self.job) else "the job"
        if not self.run_dir.exists():
            said = [line for line in "\n".join(self.logs()).splitlines() if line.startswith("hpcrl: ")]
            raise RunFailedError(f"{job} ended before its run began: {said[-1] if said else 'see its logs'}")
        summary = describe(self.run_dir)
        if code is None:
            code = summary["exit_code"] or ExitCode.RANK_FAILED
        raise RunFailedError(
            f"{self.run_dir} ended with exit code {int(code)}: {summary['cause']} ({job} is over)"
        )

    def cancel(self) -> None:
        """End the job, and the others of a chain; none is put into the queue again."""
        for job in reversed(self._jobs):  # else the end of one lets the next begin
            job.cancel()

    def logs(self) -> tuple[str, str]:
        """What the job, or those of a chain in turn, has printed so far: (stdout, stderr)."""
        jobs = self._jobs
        return "".join(job.stdout() or "" for job in jobs), "".join(job.stderr() or "" for job in jobs)

    @property
    def _jobs(self) -> tuple[Any, ...]:
        return (self.job, *self.later)


def _in_slurm(job: Any) -> bool:
    import submitit

    return isinstance(job, submitit.SlurmJob)


def _state(job: Any) -> str:
    if _in_slurm(job):
        job.watcher.clear()  # else it repeats what it has heard some time ago, of an earlier attempt maybe
    return str(job.state)


def _code(job: Any) -> int | None:
    """The tasks' exit code once the job is over; None where a task could not tell it."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    if _in_slurm(job) and not _every_task_returned(job):
        return None
    try:
        codes: list[int] = job.results()
    except (FailedJobError, UncompletedJobError):
        return None
    return max(codes)


def _every_task_returned(job: Any) -> bool:
    """Wait until all tasks have left a result, or Slurm has said twice that the job is over; which of the two.

    Once is not enough: a job that goes back into the queue can look ended for a moment, and where the file system
    is slow the results come late.
    """
    tasks = [job.task(number) for number in range(job.num_tasks)]
    over, look_at = 0, time.monotonic()
    while not all(task.paths.result_pickle.exists() for task in tasks):
        if time.monotonic() >= look_at:
            over = over + 1 if _state(job).split()[0] in _OVER else 0
            if over == 2:
                return False
            look_at = time.monotonic() + LOOK_EVERY_S
        time.sleep(min(1.0, LOOK_EVERY_S))
        with contextlib.suppress(OSError):  # has NFS look for new files
            job.paths.folder.chmod(job.paths.folder.stat().st_mode)
    return True
