"""Runs that were killed, stopped or moved to other ranks, and go on from their checkpoints."""

import math
import os
import random
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from hpcrl.audit.verdict import audit
from hpcrl.audit.verify import verify_run
from hpcrl.storage import attempt_files, checkpoint, read_table
from hpcrl.storage.salvage import salvage
from tests.system.support import TOY, lags, run, start

CHAIN = TOY | {
    "env": {"id": "chain", "engine": "toy", "num_envs": 7},
    "evaluation": {"episodes": 0},
    "budget": {"env_steps": 4000},
}
DETERMINISTIC = ("deterministic=true",)
RUN_DIR = "storage.run_dir=runs/it"
SLOW = 'env.kwargs={"seconds_per_step": 0.002}'

FAULTS = [
    *[(0, "part begun"), (2, "part written"), (0, "part renamed")],
    *[(1, step) for step in ("part begun", "part written", "part renamed", "all parts there")],
    *[(1, step) for step in ("manifest written", "set renamed", "best set marked", "old sets removed")],
]
"""World rank and the step of saving at which it is killed: every one of learner 0, which completes the sets, and those
that the others have, who write their parts all in the same way."""
CONTINUED = {(1, "part written"), (1, "manifest written"), (1, "set renamed")}
"""Where the newest set is the one before, and where it is the new one."""

KILL = """
import os, signal
from hpcrl.storage import checkpoint
seen = []
def reached(step):
    seen.append(step)
    rank, wanted = os.environ["HPCRL_TEST_FAULT"].split(":")
    if (os.environ.get("PMI_RANK"), step) == (rank, wanted) and seen.count(step) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.reached = reached
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Weights of the run that nothing happened to."""
    return run(tmp_path_factory.mktemp("whole"), *DETERMINISTIC, recipe=CHAIN).weights()


def resume(folder, *settings, **how):
    return run(folder, *settings, recipe="runs/it", resume="must", **how)


def test_a_killed_rank_costs_what_came_after_the_last_set(tmp_path, whole):
    with start(
        tmp_path,
        *DETERMINISTIC,
        SLOW,
        "checkpoint.every_updates=5",
        "storage.flush_interval_s=1000",  # a set is not complete before its rows are in the file
        RUN_DIR,
        recipe=CHAIN,
    ) as running:
        running.until_updates(12)
        os.kill(running.pids()["actor 0"], signal.SIGKILL)
        ended = running.wait()
    assert ended.code == 3, ended.stderr
    saved = checkpoint.newest(ended.run_dir)
    assert saved.update >= 5
    again = resume(tmp_path)
    assert again.weights() == whole
    summary = again.describe()
    assert summary["attempts"] == 2 and summary["status"] == "finished"
    assert summary["best_checkpoint"]["update"] in summary["checkpoints"]
    assert math.isfinite(summary["best_checkpoint"]["score"])
    updates = again.table("updates")
    assert updates["update"].tolist() == list(range(1, summary["updates"] + 1))
    assert int(again.table("lag")["env_steps"].sum()) == summary["env_steps"]
    assert f"resume: resumed at update {saved.update} from " in again.stdout


def test_a_signal_and_a_finished_run(tmp_path, whole):
    with start(tmp_path, *DETERMINISTIC, SLOW, RUN_DIR, recipe=CHAIN) as running:
        running.until_updates(3)
        running.process.send_signal(signal.SIGTERM)
        assert running.wait().code == 75
    assert resume(tmp_path).weights() == whole
    again = resume(tmp_path)
    assert (again.code, again.describe()["attempts"]) == (0, 2)
    assert "runs/it has finished" in again.stdout and "raise budget.env_steps to go on" in again.stdout
    under = resume(tmp_path, mpiexec=3)
    assert (under.code, under.describe()["attempts"]) == (0, 2), under.stderr
    longer = resume(tmp_path, "budget.env_steps=5000")
    assert longer.code == 0 and longer.describe()["env_steps"] >= 5000
    refused = resume(tmp_path, "seed=1")
    assert refused.code == 2 and "  seed: 0 -> 1" in refused.stderr


def test_the_end_of_the_allocation_stops_the_run_in_time(tmp_path):
    end = datetime.now(UTC) + timedelta(seconds=60)
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(int(end.timestamp()))}
    settings = (SLOW, "budget.env_steps=1000000000", "checkpoint.margin_s=53", RUN_DIR)
    ended = run(tmp_path, *settings, recipe=CHAIN, environ=environ)
    assert ended.code == 75 and datetime.now(UTC) < end
    summary = ended.describe()
    assert "stopped by the end of the allocation before the budget was used" in summary["cause"]
    assert checkpoint.newest(ended.run_dir).update == summary["updates"]


def test_an_attempt_whose_time_is_too_short_is_not_to_be_repeated(tmp_path):
    """The first one may leave trajectories to go on from; one that goes on from a checkpoint leaves nothing."""
    end = datetime.now(UTC) + timedelta(seconds=600)
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(int(end.timestamp()))}
    first = run(tmp_path, "checkpoint.margin_s=700", RUN_DIR, ranks=1, recipe=CHAIN, environ=environ)
    assert (first.code, first.describe()["updates"]) == (75, 0), first.stderr
    second = resume(tmp_path, environ=environ)
    assert (second.code, second.describe()["status"]) == (2, "failed"), second.stderr
    (line,) = second.named_failures()
    assert line.startswith(
        "hpcrl: the time limit is too short: no update since that of the checkpoint, 0, in an"
    )
    assert "were left when it was stopped by the end of the allocation (checkpoint.margin_s=700," in line
    assert line == f"hpcrl: {second.describe()['cause']}"
    assert resume(tmp_path, "checkpoint.margin_s=60", ranks=1, environ=environ).code == 0


@pytest.mark.parametrize(("rank", "step"), FAULTS)
def test_a_kill_at_any_step_of_saving_on_any_rank_leaves_a_set(tmp_path, rank, step, whole):
    (tmp_path / "sitecustomize.py").write_text(KILL)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environ = {"HPCRL_TEST_FAULT": f"{rank}:{step}", "PYTHONPATH": path}
    settings = (*DETERMINISTIC, "checkpoint.every_updates=4", RUN_DIR)
    killed = run(tmp_path, *settings, recipe=CHAIN, environ=environ)
    assert killed.code == 3, killed.stderr
    saved = checkpoint.newest(killed.run_dir)
    assert saved.update >= 8 and set(saved.parts) == {"actor-0", "learner-0", "replay-0"}
    if (rank, step) in CONTINUED:
        assert resume(tmp_path).weights() == whole


@pytest.mark.stress
def test_six_kills_in_a_row(tmp_path, whole):
    """Of every process at once, at random times; what each attempt leaves can be read, and the run ends as ever."""
    delay, how = random.Random(6), {"recipe": CHAIN}
    settings = (*DETERMINISTIC, SLOW, "checkpoint.every_updates=3", "storage.flush_interval_s=0.05", RUN_DIR)
    for attempt in range(1, 7):
        with start(tmp_path, *settings, **how) as running:
            running.until(lambda attempt=attempt: len(attempt_files(tmp_path / "runs/it")) == attempt)
            running.until(lambda: len(read_table(attempt_files(tmp_path / "runs/it")[-1], "updates")) > 3)
            time.sleep(delay.uniform(0, 0.5))
            running.kill_everything()
        found = verify_run(tmp_path / "runs/it")
        assert found.sound and found.files == attempt, found.violations
        settings, how = (), {"recipe": "runs/it", "resume": "must"}
    assert len(salvage(tmp_path / "runs/it")[0]) == 6
    ended = resume(tmp_path)
    assert ended.weights() == whole
    found = verify_run(ended.run_dir)
    assert found.sound and found.files == 7, found.violations
    updates = ended.table("updates")["update"].tolist()
    assert updates == list(range(1, len(updates) + 1))


def test_two_actors_become_three_with_two_of_the_others(tmp_path):
    ranks = ("ranks.actors=2", "ranks.replay=1", "ranks.learners=1")
    more = ("ranks.actors=3", "ranks.replay=2", "ranks.learners=2")
    with start(tmp_path, *ranks, SLOW, "lag.max_lag=2", RUN_DIR, recipe=CHAIN) as running:
        running.until_updates(4)
        running.process.send_signal(signal.SIGINT)
        before = running.wait()
    assert before.code == 75, before.stderr
    with start(tmp_path, *more, SLOW, recipe="runs/it", resume="must", mpiexec=7) as running:
        running.until(lambda: b"resumed" in before.table("events")["kind"])
        running.process.send_signal(signal.SIGINT)
        stopped = running.wait()
    assert stopped.code == 75, stopped.stderr
    ended = resume(tmp_path, *more)
    assert ended.code == 0, ended.stderr
    summary = ended.describe()
    assert summary["weights_equal"] and len(summary["weights_sha256"]) == 2
    assert min(lags(ended)) >= 0 and max(lags(ended)) <= 2
    updates = ended.table("updates")["update"]
    assert updates.tolist() == list(range(1, len(updates) + 1))
    assert "episode_restarted" not in summary["events"] and summary["events"]["stream_derived"] >= 1


def test_late_batches_wait_in_the_checkpoint(tmp_path):
    """Of the queue that lag.injection puts before the updates."""
    late = ("scheme=synchronous", "lag.injection=3", "lag.max_lag=3")
    whole = run(tmp_path / "whole", *late, "budget.env_steps=600", recipe=CHAIN)
    folder = tmp_path / "parts"
    assert run(folder, *late, "budget.env_steps=300", RUN_DIR, recipe=CHAIN).code == 0
    again = resume(folder, "budget.env_steps=600")
    assert again.weights() == whole.weights()
    found = audit(again.run_dir)
    assert found.proved, found.violations
    lag = again.table("lag")
    assert lag["lag"].tolist() == [min(update - 1, 3) for update in lag["update"]]


def test_a_second_writer_is_refused(tmp_path):
    with start(tmp_path, SLOW, RUN_DIR, "budget.env_steps=1000000000", recipe=CHAIN) as running:
        running.until_updates(2)
        second = resume(tmp_path)
        assert second.code == 2 and "is being written by process" in second.stderr
        assert running.process.poll() is None
