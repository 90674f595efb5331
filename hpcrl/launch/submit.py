"""Runs as jobs from Python, through submitit: in a local process, or in a Slurm allocation."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcrl.comm.signals import SignalFlag
from hpcrl.config import ConfigError, ExitCode, RunConfig
from hpcrl.launch.recipes import load_config
from hpcrl.launch.situation import look
from hpcrl.launch.start import join, start_world
from hpcrl.storage.rundir import check_free
from hpcrl.storage.summary import describe


class RunFailedError(RuntimeError):
    """The job ended without finishing its run; the message has the exit code and the cause."""


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    """A run that was handed to an executor."""

    job: Any
    """The submitit job."""
    run_dir: Path

    def state(self) -> str:
        """The scheduler's word for how the job stands."""
        return str(self.job.state)

    def result(self) -> dict[str, Any]:
        """Wait for the end; the run's summary (`hpcrl describe --json`). Raises RunFailedError."""
        codes = self.job.results()
        if not self.run_dir.exists():
            said = [line for line in self.logs()[1].splitlines() if line.startswith("hpcrl: ")]
            cause = said[-1] if said else "see the job's logs"
            raise RunFailedError(f"the job ended with exit code {max(codes)} before its run began: {cause}")
        summary = describe(self.run_dir)
        if any(code != ExitCode.FINISHED for code in codes):
            raise RunFailedError(f"{self.run_dir} ended with exit code {max(codes)}: {summary['cause']}")
        return summary

    def cancel(self) -> None:
        """End the job."""
        self.job.cancel()

    def logs(self) -> tuple[str, str]:
        """What the job has printed so far: (stdout, stderr)."""
        return self.job.stdout() or "", self.job.stderr() or ""


def submit(
    recipe: str | RunConfig,
    *,
    executor: Literal["local", "slurm"] = "local",
    overrides: Sequence[str] = (),
    num_ranks: int | None = None,
    folder: str | Path = "runs/jobs",
    minutes: int = 60,
    mpi: str = "pmi2",
    slurm: dict[str, Any] | None = None,
) -> SubmittedRun:
    """Check a recipe and submit it. Local; returns at once.

    Args:
        recipe: as for `hpcrl run`, or a RunConfig.
        executor: "local": a process on this machine; "slurm": an allocation with one task per rank.
        overrides: `a.b=value` assignments.
        num_ranks: as `--ranks`.
        folder: where submitit keeps its scripts and logs; must be on a file system that the nodes share.
        minutes: time limit.
        mpi: srun's MPI plugin: pmi2 for MPICH, pmix for Open MPI (slurm only).
        slurm: more parameters for submitit's Slurm executor by their submitit names, e.g. {"partition": "cpu"}.

    Raises:
        ConfigError: the recipe does not fit, or the executor is unknown.
    """
    import submitit

    config = load_config(recipe, overrides, num_ranks)
    one_rank = 1 in (config.world_size, num_ranks)
    config = _with_run_dir(config)
    check_free(config)
    if executor == "local":
        chosen: submitit.Executor = submitit.LocalExecutor(folder=folder)
        chosen.update_parameters(timeout_min=minutes)
    elif executor == "slurm":
        chosen = submitit.SlurmExecutor(folder=folder)
        parameters: dict[str, Any] = {"time": minutes, "nodes": 1, "cpus_per_task": 1}
        parameters["ntasks_per_node"] = 1 if one_rank else config.world_size
        parameters |= {"srun_args": [f"--mpi={mpi}", "--kill-on-bad-exit=1"]}
        chosen.update_parameters(**(parameters | (slurm or {})))
    else:
        raise ConfigError(f"executor={executor!r}; use 'local' or 'slurm'")
    job = chosen.submit(run_submitted, config.to_dict(), one_rank)
    return SubmittedRun(job, Path(str(config.storage.run_dir)))


def run_submitted(values: dict[str, Any], one_rank: bool) -> int:
    """One task of a submitted job; plain data in, exit code out. Collective over the job's tasks.

    `one_rank`: every role in this process; else ranks are started unless this process is one already.
    """
    flag = SignalFlag()
    flag.install()
    config = RunConfig.parse(values)
    situation = look()
    if situation.in_world or one_rank:
        return join(config, situation, flag)
    return start_world(config, flag)


def _with_run_dir(config: RunConfig) -> RunConfig:
    if config.storage.run_dir is not None:
        path = Path(config.storage.run_dir)
    else:
        path = Path(config.storage.runs_dir) / f"{config.name}-{config.seed}-{secrets.token_hex(4)}"
    storage = config.storage.to_dict() | {"run_dir": str(path.absolute())}
    return RunConfig.parse(config.to_dict() | {"storage": storage})
