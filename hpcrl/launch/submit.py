"""Runs as jobs from Python, through submitit: in local processes, in Slurm allocations, or in this process."""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcrl.comm.signals import SignalFlag
from hpcrl.config import ConfigError, ExitCode, RunConfig, SiteConfig, load_site, parse_minutes
from hpcrl.launch.recipes import load_config
from hpcrl.launch.script import environment_lines
from hpcrl.launch.situation import look
from hpcrl.launch.start import join, start_world
from hpcrl.storage.resume import ResumeMode, check_start, finished
from hpcrl.storage.summary import describe

Executor = Literal["local", "slurm", "debug"]


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
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            code = max(self.job.results())
        except (FailedJobError, UncompletedJobError) as error:
            if not self.run_dir.exists():
                raise RunFailedError(f"the job ended before its run began: {error}") from error
            code = int(ExitCode.RANK_FAILED)
        if not self.run_dir.exists():
            said = [line for line in "\n".join(self.logs()).splitlines() if line.startswith("hpcrl: ")]
            cause = said[-1] if said else "see the job's logs"
            raise RunFailedError(f"the job ended with exit code {code} before its run began: {cause}")
        summary = describe(self.run_dir)
        if code != ExitCode.FINISHED:
            raise RunFailedError(f"{self.run_dir} ended with exit code {code}: {summary['cause']}")
        return summary

    def cancel(self) -> None:
        """End the job."""
        self.job.cancel()

    def logs(self) -> tuple[str, str]:
        """What the job has printed so far: (stdout, stderr)."""
        return self.job.stdout() or "", self.job.stderr() or ""


def submit(recipe: str | RunConfig, **how: Any) -> SubmittedRun:
    """Check a recipe and submit it. Local; returns at once. Takes and raises what `submit_seeds` does."""
    return submit_seeds(recipe, [None], **how)[0]


def submit_seeds(
    recipe: str | RunConfig,
    seeds: Sequence[int | None],
    *,
    executor: Executor = "local",
    site: str | SiteConfig | None = None,
    overrides: Sequence[str] = (),
    num_ranks: int | None = None,
    nodes: int | None = None,
    time: str | None = None,
    resume: ResumeMode = "never",
    folder: str | Path = "runs/jobs",
    slurm: dict[str, Any] | None = None,
) -> list[SubmittedRun]:
    """Check a recipe and submit one run per seed, in Slurm as an array. Local; returns at once.

    Each run ends on its own: one that fails says so in its `result` and does not touch the others. A run that was
    stopped before its budget is not put into the queue again, as `hpcrl submit` does.

    Args:
        recipe: as for `hpcrl run`, or a RunConfig.
        seeds: of the runs; None: the recipe's.
        executor: "local": processes on this machine; "slurm": an allocation with one task per rank; "debug": every
            role in this very process, when `result` is called, once per process: for breakpoints.
        site: profile of the cluster (slurm only), as for `hpcrl submit --site`. Its `command` and `signal` are not
            used: jobs run this Python, and submitit's signal is USR2.
        overrides: `a.b=value` assignments.
        num_ranks: as `--ranks`.
        nodes: nodes of each run (slurm only); must divide the number of ranks. None: the profile's.
        time: time limit in Slurm's forms. None: the profile's.
        resume: as `hpcrl run --resume`; with "if-exists" or "must" name storage.run_dir.
        folder: where submitit keeps its scripts and logs; must be on a file system that the nodes share.
        slurm: more parameters for submitit's Slurm executor by their submitit names, e.g. {"partition": "cpu"}.

    Raises:
        ConfigError: the recipe does not fit, or the executor is unknown.
    """
    profile = site if isinstance(site, SiteConfig) else SiteConfig() if site is None else load_site(site)
    runs: list[RunConfig] = []
    for seed in seeds:
        of_seed = [] if seed is None else [f"seed={seed}"]
        config = load_config(
            recipe, [*overrides, *of_seed], 1 if executor == "debug" and num_ranks is None else num_ranks
        )
        runs.append(_with_run_dir(config))
        check_start(runs[-1], resume)
    if len({run.storage.run_dir for run in runs}) < len(runs):
        raise ConfigError("storage.run_dir is one directory for all seeds; name storage.runs_dir")
    one_rank = 1 in (runs[0].world_size, num_ranks)
    minutes = parse_minutes(time or profile.time)
    if executor == "slurm":
        parameters = _slurm_parameters(
            runs[0], profile, minutes, 1 if one_rank else runs[0].world_size, nodes
        )
    else:
        parameters = {"timeout_min": minutes}
    chosen = _executor(executor, folder)
    chosen.update_parameters(**(parameters | (slurm or {} if executor == "slurm" else {})))
    function = run_here if executor == "debug" else run_submitted
    with _interruptible(), chosen.batch() if len(runs) > 1 else contextlib.nullcontext():
        jobs = [chosen.submit(function, run.to_dict(), one_rank, resume) for run in runs]
    return [SubmittedRun(job, Path(str(run.storage.run_dir))) for job, run in zip(jobs, runs, strict=True)]


def run_submitted(values: dict[str, Any], one_rank: bool, resume: ResumeMode) -> int:
    """One task of a submitted job; plain data in, exit code out. Collective over the job's tasks.

    `one_rank`: every role in this process; else ranks are started unless this process is one already. Raises
    RunFailedError where another rank would wait for this one: srun ends the job when a task fails.
    """
    flag = SignalFlag()
    flag.install()
    config = RunConfig.parse(values)
    situation = look()
    if finished(config, resume):  # every task of the job says so
        return int(ExitCode.FINISHED)
    if not situation.in_world and not one_rank:
        return start_world(config, flag, resume)
    code = join(config, situation, flag, resume)
    if situation.in_world and code == ExitCode.RANK_FAILED:
        raise RunFailedError("this rank has failed; its line in the log says why")
    return code


def run_here(values: dict[str, Any], one_rank: bool, resume: ResumeMode) -> int:
    """Every role in this very process, without a supervisor; the exit code."""
    from hpcrl.launch.inside import run_rank
    from hpcrl.launch.supervise import Board

    return run_rank(RunConfig.parse(values), look({}), Board(), SignalFlag(), resume)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Have local jobs heed SIGINT, by which submitit cancels them, also where this process ignores it.

    As it does when a shell script has put it into the background.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()  # only there handlers may be set
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _executor(name: str, folder: str | Path) -> Any:
    import submitit

    classes = {
        "local": submitit.LocalExecutor,
        "slurm": submitit.SlurmExecutor,
        "debug": submitit.DebugExecutor,
    }
    if name not in classes:
        raise ConfigError(f"executor={name!r}; use {', '.join(map(repr, classes))}")
    try:
        return classes[name](folder=folder)
    except RuntimeError as error:  # submitit finds no srun
        raise ConfigError(f"executor={name!r}: {error}") from error


def _slurm_parameters(
    config: RunConfig, site: SiteConfig, minutes: int, ranks: int, nodes: int | None
) -> dict[str, Any]:
    """What the profile asks for, by submitit's names. Raises ConfigError for what submitit cannot do."""
    count = min(site.nodes, ranks) if nodes is None else nodes
    if count < 1 or ranks % count != 0:
        raise ConfigError(
            f"{ranks} ranks cannot be divided evenly over {count} nodes, which submitit needs; change num_ranks or "
            "nodes, or use `hpcrl submit`"
        )
    if site.launcher != "srun":
        raise ConfigError(
            f"submitit starts ranks by srun, and the site profile has launcher={site.launcher!r}"
        )
    mpi = [] if site.mpi is None else [f"--mpi={site.mpi}"]
    named = {"partition": site.partition, "account": site.account, "qos": site.qos}
    return {
        **{key: value for key, value in named.items() if value is not None},
        "job_name": config.name,
        "time": minutes,
        "nodes": count,
        "ntasks_per_node": ranks // count,
        "cpus_per_task": site.cpus_per_rank,
        "signal_delay_s": site.signal_lead_s,
        "setup": [*environment_lines(site), f"export OMP_NUM_THREADS={site.cpus_per_rank}"],
        "srun_args": [*mpi, "--kill-on-bad-exit=1", *site.launcher_options],
        "additional_parameters": dict(_option(option) for option in site.sbatch),
    }


def _option(text: str) -> tuple[str, Any]:
    name, given, value = text.removeprefix("--").partition("=")
    if not text.startswith("--"):
        raise ConfigError(f"sbatch option {text!r} of the site profile: submitit needs the form --name=value")
    return name, value if given else True


def _with_run_dir(config: RunConfig) -> RunConfig:
    if config.storage.run_dir is not None:
        path = Path(config.storage.run_dir)
    else:
        path = Path(config.storage.runs_dir) / f"{config.name}-{config.seed}-{secrets.token_hex(4)}"
    storage = config.storage.to_dict() | {"run_dir": str(path.absolute())}
    return RunConfig.parse(config.to_dict() | {"storage": storage})
