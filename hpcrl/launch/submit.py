"""Runs as jobs from Python, through submitit: in local processes, in Slurm allocations, or in this process."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hpcrl.comm.signals import SignalFlag
from hpcrl.config import ConfigError, ExitCode, RunConfig, SiteConfig, load_site, parse_minutes
from hpcrl.launch.batch import time_limit
from hpcrl.launch.script import END, THREADS, UNEVEN, environment_lines, many, no_requeue, requeue_lines
from hpcrl.launch.situation import look
from hpcrl.launch.start import run_config
from hpcrl.launch.submitted import RunFailedError, SubmittedRun
from hpcrl.launch.sweep import Combination, combine
from hpcrl.storage.resume import ResumeMode, check_start

__all__ = ["Executor", "RunFailedError", "SubmittedRun", "submit", "submit_seeds", "submit_sweep"]

Executor = Literal["local", "slurm", "debug"]


def submit(recipe: str | RunConfig, **how: Any) -> SubmittedRun:
    """Check a recipe and submit it. Local; returns at once. Takes and raises what `submit_sweep` does."""
    return submit_sweep(recipe, {}, **how)[0]


def submit_seeds(recipe: str | RunConfig, seeds: Sequence[int], **how: Any) -> list[SubmittedRun]:
    """Submit one run per seed, as `submit_sweep` does over `seed` alone."""
    return submit_sweep(recipe, {"seed": seeds}, **how)


def submit_sweep(
    recipe: str | RunConfig,
    sweep: Mapping[str, Sequence[Any]],
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
    chain: int = 1,
) -> list[SubmittedRun]:
    """Check a recipe and submit a run for every combination of values, in Slurm as an array. Local; returns at once.

    As `submit_sweep(recipe, {"algorithm.learning_rate": [1e-3, 3e-4], "seed": range(3)})`: six runs in six directories,
    whose names say which is which; the last key's values change fastest. All are checked before one is submitted.

    Each run ends on its own: one that fails says so in its `result` and does not touch the others. In Slurm a run that
    was stopped before its budget (by the time limit, by preemption, by a signal) is put into the queue again and goes
    on in its directory, once per attempt and for as many attempts as the profile has, as with `hpcrl submit`.

    Args:
        recipe: as for `hpcrl run`, or a RunConfig.
        sweep: dotted keys and the values of each; none: the one run.
        executor: "local": processes on this machine; "slurm": an allocation with one task per rank; "debug": every
            role in this very process, when `result` is called, once per process: for breakpoints.
        site: profile of the cluster (slurm only), as for `hpcrl submit --site`. Its `command` and `signal` are not
            used: jobs run this Python, and submitit's signal is USR2.
        overrides: `a.b=value` assignments.
        num_ranks: as `--ranks`.
        nodes: nodes of each run (slurm only). None: the profile's, or one per rank where these are fewer.
        time: time limit in Slurm's forms. None: the profile's.
        resume: as `hpcrl run --resume`; with "if-exists" or "must" name storage.run_dir.
        folder: where submitit keeps its scripts and logs; must be on a file system that the nodes share.
        slurm: more parameters for submitit's Slurm executor by their submitit names, e.g. {"partition": "cpu"}, or
            {"array_parallelism": 2} for two runs at a time; lists and dictionaries are added to what the profile gives.
        chain: so many jobs for each run (slurm only), as `hpcrl submit --chain`: each starts when the one before has
            ended, however that was, and goes on in its directory, or ends at once where the run has finished.

    Raises:
        ConfigError: the recipe or a combination does not fit, or the executor is unknown.
    """
    profile = site if isinstance(site, SiteConfig) else SiteConfig() if site is None else load_site(site)
    if chain < 1 or (chain > 1 and executor != "slurm"):
        raise ConfigError(f"chain={chain} with executor={executor!r}; use 1, or more with executor='slurm'")
    if executor == "debug" and num_ranks is None:
        num_ranks = 1
    token = secrets.token_hex(4)
    runs = [_with_run_dir(one, token) for one in combine(recipe, overrides, num_ranks, sweep)]
    for run in runs:
        check_start(run, resume)
    one_rank = 1 in (runs[0].world_size, num_ranks)
    ranks = 1 if one_rank else runs[0].world_size
    if executor == "slurm":
        parameters = _slurm_parameters(runs, profile, time_limit(time, profile), ranks, nodes)
        parameters = _united(parameters, slurm or {})
    else:
        parameters = {"timeout_min": parse_minutes(time or profile.time)}
    chosen = _executor(executor, folder)
    chosen.update_parameters(**parameters)
    function = {"local": run_submitted, "slurm": run_task, "debug": run_here}[executor]
    with _interruptible():
        jobs = [_send(chosen, function, runs, one_rank, resume)]
        for _ in range(1, chain):
            before = jobs[-1][0].job_id.partition("_")[0]  # the whole array, where there is one
            chosen.update_parameters(**{**parameters, "dependency": f"afterany:{before}"})
            jobs.append(_send(chosen, function, runs, one_rank, "if-exists"))
    if executor == "slurm":  # submitit counts tasks as nodes times tasks per node
        jobs = [[type(job)(chosen.folder, job.job_id, range(ranks)) for job in link] for link in jobs]
    return [
        SubmittedRun(first, Path(str(run.storage.run_dir)), tuple(later))
        for run, first, *later in zip(runs, *jobs, strict=True)
    ]


def _send(executor: Any, function: Any, runs: Sequence[RunConfig], one_rank: bool, resume: ResumeMode) -> Any:
    """A submitit job for each run, of several as an array."""
    with executor.batch() if len(runs) > 1 else contextlib.nullcontext():
        return [executor.submit(function, run.to_dict(), one_rank, resume) for run in runs]


def run_submitted(values: dict[str, Any], one_rank: bool, resume: ResumeMode) -> int:
    """A local job: plain data in, exit code out. `one_rank`: every role in this process, else ranks are started."""
    return run_config(lambda: RunConfig.parse(values), resume, SignalFlag().install(), one_rank=one_rank)


def run_task(values: dict[str, Any], one_rank: bool, resume: ResumeMode) -> int:
    """One task of a Slurm job; plain data in, 0 out when the run has finished. Collective over the job's tasks.

    Any other exit code is the process's own: it raises SystemExit, so that submitit writes no result, and what to do
    about the code is up to the end of the batch script, once every task has left. No handler of submitit's takes part:
    it would be called in one task and not at an update.
    """
    restarted = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
    mode: ResumeMode = "if-exists" if restarted and resume == "never" else resume
    code = run_config(lambda: RunConfig.parse(values), mode, SignalFlag().install(), one_rank=one_rank)
    if code != ExitCode.FINISHED:
        raise SystemExit(code)
    return code


def run_here(values: dict[str, Any], one_rank: bool, resume: ResumeMode) -> int:
    """Every role in this very process, without a supervisor; the exit code."""
    from hpcrl.launch.board import Board
    from hpcrl.launch.inside import run_rank

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
    runs: Sequence[RunConfig], site: SiteConfig, minutes: int, ranks: int, nodes: int | None
) -> dict[str, Any]:
    """What the profile asks for, by submitit's names. Raises ConfigError for what submitit cannot do."""
    count = min(site.nodes, ranks) if nodes is None else nodes
    if not 1 <= count <= ranks:
        raise ConfigError(
            f"{many(count, 'node')} for {many(ranks, 'rank')}; use nodes=1 to {ranks}, or more ranks"
        )
    if site.launcher != "srun":
        raise ConfigError(
            f"submitit starts ranks by srun, and the site profile has launcher={site.launcher!r}"
        )
    mpi = [] if site.mpi is None else [f"--mpi={site.mpi}"]
    named = {"partition": site.partition, "account": site.account, "qos": site.qos}
    requeue = "no-requeue" if no_requeue(site) else "requeue"
    per_node = {"ntasks": ranks, "ntasks-per-node": -(-ranks // count)}
    return {
        **{key: value for key, value in named.items() if value is not None},
        "job_name": runs[0].name,
        "time": minutes,
        "nodes": count,
        "cpus_per_task": site.cpus_per_rank,
        "signal_delay_s": site.signal_lead_s,
        "setup": [*environment_lines(site), THREADS, *([UNEVEN] if ranks % count else [])],
        "srun_args": [*mpi, "--kill-on-bad-exit=1", "--open-mode=append", *site.launcher_options],
        "teardown": _end(runs, site),
        "additional_parameters": {**per_node, requeue: True} | dict(map(_option, site.sbatch)),
    }


def _end(runs: Sequence[RunConfig], site: SiteConfig) -> list[str]:
    """The end of the batch script, as in jobs of `hpcrl submit`. Elements of an array are numbered from 0."""
    run_dirs = shlex.join(str(run.storage.run_dir) for run in runs)
    where = [f"RUN_DIRS=({run_dirs})", "RUN_DIR=${RUN_DIRS[${SLURM_ARRAY_TASK_ID:-0}]}"]
    return ["status=$?", *requeue_lines(site), *where, END]


def _united(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's parameters over those of the profile. Lists and dictionaries are joined; theirs is read later.

    But a `teardown` of theirs comes before the end of the script, which does not return.
    """
    both = {**ours, **theirs}
    for key, value in ours.items():
        other = theirs.get(key)
        if isinstance(value, list) and other is not None:
            both[key] = [value[0], *other, *value[1:]] if key == "teardown" else [*value, *other]
        elif isinstance(value, dict) and other is not None:
            both[key] = value | other
    return both


def _option(text: str) -> tuple[str, Any]:
    name, given, value = text.removeprefix("--").partition("=")
    if not text.startswith("--"):
        raise ConfigError(f"sbatch option {text!r} of the site profile: submitit needs the form --name=value")
    return name, value if given else True


def _with_run_dir(run: Combination, token: str) -> RunConfig:
    config = run.config
    if config.storage.run_dir is not None:
        path = Path(config.storage.run_dir)
    else:
        path = Path(config.storage.runs_dir) / run.run_name(token)
    storage = config.storage.to_dict() | {"run_dir": str(path.absolute())}
    return RunConfig.parse(config.to_dict() | {"storage": storage})
