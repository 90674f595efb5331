"""The exercises of `hpcrl drill`: each starts real runs, does something to them, and looks at what becomes of them.

An exercise returns a sentence about what it has seen. It raises NotHeldError where a protection did not hold, and
NotTriedError where it cannot be done here.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpcrl.config import ExitCode, RunConfig
from hpcrl.drill.plan import FOREVER, Drill
from hpcrl.drill.runs import DrilledRun, Ended, NotHeldError, NotTriedError, Rank, parent_of, send, stop
from hpcrl.storage import checkpoint, read_table
from hpcrl.storage.files import read_json
from hpcrl.storage.parts import Values

_WATCH_S = 0.0003
"""Between two looks for a checkpoint that is being written."""


def kill(drill: Drill) -> str:
    """SIGKILL to one rank of each role, one start after the other."""
    killed: list[str] = []
    roles = 1
    while len(killed) < roles:
        with drill.resume(FOREVER) if killed else drill.start() as run:
            run.until_working()
            ranks = run.one_of_each_role()
            roles, rank = len(ranks), ranks[len(killed)]
            send(rank.pid, signal.SIGKILL)
            _expect_named_end(drill, run, rank, "was killed by SIGKILL", drill.bound_s)
            killed.append(str(rank))
    return f"{', '.join(killed)}: each named; {drill.finish()}"


def kill_save(drill: Drill) -> str:
    """SIGKILL to the rank that completes checkpoints, while one is being written."""
    with drill.start("checkpoint.every_updates=1") as run:
        run.until_working()
        root = run.root()
        run.until(lambda: _kill_within_save(run, root), "a checkpoint that is being written", _WATCH_S)
        _expect_named_end(drill, run, root, "was killed by SIGKILL", drill.bound_s)
    sets = _check_sets(drill)
    return f"{len(sets)} whole checkpoints, no torn one; {drill.finish()}"


def stall(drill: Drill) -> str:
    """SIGSTOP to a rank, for good."""
    with drill.start(drill.stall) as run:
        run.until_working()
        rank = run.one_of_each_role()[-1]
        stop(rank.pid)
        began = time.monotonic()
        _expect_named_end(drill, run, rank, "has made no progress for", drill.stall_timeout_s + drill.bound_s)
        took_s = time.monotonic() - began
    return f"{rank}: named and ended after {took_s:.1f} s, with a limit of {drill.stall_timeout_s:g} s"


def delay(drill: Drill) -> str:
    """SIGSTOP and SIGCONT, half of the stall limit apart, to one rank of each role."""
    pause_s = drill.stall_timeout_s / 2
    with drill.start(drill.stall) as run:
        run.until_working()
        ranks = run.one_of_each_role()
        for rank in ranks:
            stop(rank.pid)
            time.sleep(pause_s)
            send(rank.pid, signal.SIGCONT)
        before = run.updates()
        run.until(lambda: run.updates() >= before + 2, "an update after the pauses")
        _stop_in_order(run, ranks)
    lag = _worst_lag(drill)
    return f"{len(ranks)} ranks paused for {pause_s:g} s each; lag at most {lag}; {drill.finish()}"


def signals(drill: Drill) -> str:
    """SIGUSR1 to every rank on this host, twice, and SIGTERM."""
    with drill.start() as run:
        run.until_working()
        _stop_in_order(run, run.ranks())
        run.check_gone(drill.bound_s)
    updates = len(read_table(drill.run_dir, "updates"))
    saved = _check_sets(drill)[0]
    if saved.update != updates:
        raise NotHeldError(f"stopped after update {updates}, but the newest checkpoint is of {saved.update}")
    return f"stopped with exit code {int(ExitCode.RESUME_ME)} and a checkpoint; {drill.finish()}"


def disk_full(drill: Drill) -> str:
    """No file of any rank can grow any more (RLIMIT_FSIZE of 0), for longer than the run is to bear."""
    with drill.start("storage.patience_s=1") as run:
        run.until_working()
        for rank in run.ranks():
            for pid in (parent_of(rank.pid), rank.pid):
                _let_no_file_grow(pid)
        ended = run.wait("no file could grow any more")
        run.check_gone(drill.bound_s)
    if ended.code in (ExitCode.FINISHED, ExitCode.RESUME_ME):
        raise NotHeldError(f"ended with exit code {ended.code}, as if nothing had happened")
    causes = [line for line in ended.stderr.splitlines() if line.startswith("hpcrl: ")]
    if not any("File too large" in line or "cannot be written" in line for line in causes):
        raise NotHeldError(f"the cause is not named: {ended.last_words}")
    _check_sets(drill)
    return f"ended with exit code {ended.code}, cause named; {drill.finish()}"


def corrupt(drill: Drill) -> str:
    """One byte of the newest checkpoint is another one than was written."""
    with drill.start() as run:
        run.until_working(checkpoints=2)
        _stop_in_order(run, run.ranks())
    newest, before = _check_sets(drill)[:2]
    victim = max(newest.path.glob("*.h5"), key=lambda path: path.stat().st_size)
    with victim.open("r+b") as file:
        file.seek(victim.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    finished = drill.finish_from(before.update, int(before.meta["env_steps"]))
    return f"update {newest.update} was passed over; {finished}"


def second_writer(drill: Drill) -> str:
    """A second `hpcrl run --resume must` on the run directory of one under way."""
    with drill.start() as run:
        run.until_working()
        with drill.resume("budget.env_steps=1") as second:
            refused = second.wait("it was started on a run directory in use")
        if refused.code != ExitCode.BAD_CONFIGURATION or "is being written by" not in refused.stderr:
            raise NotHeldError(
                f"the second writer was let in, and ended with exit code {refused.code}: {refused.last_words}"
            )
        before = run.updates()
        run.until(lambda: run.updates() > before, "an update after the second writer was refused")
    return "refused; the first one went on"


def nan(drill: Drill) -> str:
    """Every reward is NaN."""
    env = drill.config.env.to_dict()
    outer = {"engine": "custom", "id": "hpcrl.envs:make_with_nan_rewards", "kwargs": {"env": env}}
    config = RunConfig.parse(drill.config.to_dict() | {"env": env | outer})
    most = drill.config.algorithm.max_nonfinite_updates
    budget = (most + 2) * drill.update_env_steps  # reached only if nobody minds
    with drill.start(f"budget.env_steps={budget}", config=config) as run:
        ended = run.wait("every reward was NaN")
        run.check_gone(drill.bound_s)
    _expect_code(ended, ExitCode.LEARNING_FAILED)
    saved = _check_sets(drill)[0]
    bad: list[str] = []

    def look(values: Values) -> None:
        arrays = {name: np.asarray(value) for name, value in values.items()}
        bad.extend(
            name for name, array in arrays.items() if array.dtype.kind == "f" and np.isnan(array).any()
        )

    root = next(part for part in saved.parts if part in ("learner-0", "worker-0"))
    saved.restore(root, "algorithm", look)
    if bad:
        raise NotHeldError(f"NaN was learned: {', '.join(bad)} of update {saved.update}")
    return f"ended with exit code {ended.code} after {most} updates, none applied"


FUNCTIONS: dict[str, Callable[[Drill], str]] = {
    "kill": kill,
    "kill-save": kill_save,
    "stall": stall,
    "delay": delay,
    "signal": signals,
    "disk-full": disk_full,
    "corrupt": corrupt,
    "second-writer": second_writer,
    "nan": nan,
}
"""By the names of `arguments.EXERCISES`."""


def _expect_code(ended: Ended, code: ExitCode) -> None:
    if ended.code != code:
        raise NotHeldError(f"ended with exit code {ended.code}, not {int(code)}: {ended.last_words}")


def _expect_named_end(drill: Drill, run: DrilledRun, rank: Rank, cause: str, within_s: float) -> None:
    """The job ends within `within_s`, names this rank with this cause, and leaves nothing running."""
    began = time.monotonic()
    ended = run.wait(f"{rank} had to be missed", within_s)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("hpcrl: ")]
    if not any(f"(rank {rank.world_rank} on " in line and cause in line for line in lines):
        raise NotHeldError(f"nobody says that {rank} {cause}: {ended.last_words}")
    _expect_code(ended, ExitCode.RANK_FAILED)
    run.check_gone(max(1.0, within_s - (time.monotonic() - began)))
    status = read_json(drill.run_dir / "status.json") or {}
    if cause not in str(status.get("cause")):
        raise NotHeldError(f"status.json does not say that {rank} {cause}: {status.get('cause')!r}")


def _stop_in_order(run: DrilledRun, ranks: list[Rank]) -> None:
    """SIGUSR1 to these ranks, twice, and SIGTERM as at a scheduler's limit; the run stops with RESUME_ME."""
    for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):  # MPICH alone would ignore SIGUSR1
        for rank in ranks:
            send(rank.pid, number)
        time.sleep(0.05)
    _expect_code(run.wait("SIGUSR1"), ExitCode.RESUME_ME)


def _kill_within_save(run: DrilledRun, root: Rank) -> bool:
    """Kill the root if a checkpoint is being written, which is sure only once the root has stopped."""
    if not _being_written(run.run_dir):
        return False
    stop(root.pid)
    if not _being_written(run.run_dir):
        send(root.pid, signal.SIGCONT)
        return False
    send(root.pid, signal.SIGKILL)
    return True


def _being_written(run_dir: Path) -> bool:
    for path in (run_dir / "checkpoints").iterdir():
        if path.name.removeprefix(".tmp-").isdigit():
            aside = path.name.startswith(".tmp-")
            if aside or (not (path / "manifest.json").exists() and path.exists()):
                return True
    return False


def _check_sets(drill: Drill) -> list[checkpoint.Saved]:
    """Everything that bears the name of a checkpoint, newest first. Raises NotHeldError when one is not whole."""
    try:
        sets = [checkpoint.verify(path) for path in checkpoint.find_sets(drill.run_dir)]
    except (ValueError, OSError) as error:
        raise NotHeldError(f"a torn checkpoint bears its final name: {error}") from error
    if not sets:
        raise NotHeldError("there is no checkpoint")
    return sets


def _worst_lag(drill: Drill) -> int:
    """Largest lag that was trained on, in updates. Raises NotHeldError above lag.max_lag."""
    rows = read_table(drill.run_dir, "lag")
    worst = int(rows["lag"][rows["env_steps"] > 0].max(initial=0))
    if worst > drill.config.lag.max_lag:
        raise NotHeldError(f"lag {worst} was trained on, with lag.max_lag={drill.config.lag.max_lag}")
    return worst


def _let_no_file_grow(pid: int) -> None:
    try:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
    except PermissionError as error:
        raise NotTriedError(f"limits of other processes cannot be set here: {error}") from error
