"""Signals: the run stops at the next update, saves, says so with exit code 75, and leaves nothing behind."""

import contextlib
import os
import random
import signal
import sys
import time

import pytest

from hpcrl.storage import checkpoint
from tests.system.support import FOREVER, assert_gone, run, start


def rank_processes(running):
    return [pid for pid, command in running.processes().items() if command.startswith(sys.executable)]


def check_stopped(ended, by):
    assert ended.code == 75, ended.stderr
    summary = ended.describe()
    assert (summary["status"], summary["exit_code"]) == ("stopped", 75)
    assert by in summary["cause"] and "before the budget was used" in summary["cause"]
    assert summary["evaluation"] is None
    assert ended.named_failures() == []
    assert "Traceback" not in ended.stderr
    assert ended.run_dir is not None
    saved = checkpoint.newest(ended.run_dir)
    assert saved.update == saved.meta["update"] == summary["updates"]
    assert saved.meta["env_steps"] == summary["env_steps"] == int(ended.table("lag")["env_steps"].sum())
    assert len(saved.parts) == len(ended.table("ranks"))
    return summary


@pytest.mark.parametrize("ranks", [None, 1], ids=["three ranks", "one process"])
def test_ctrl_c_and_then_impatience(tmp_path, ranks):
    with start(tmp_path, FOREVER, ranks=ranks) as running:
        running.until_updates(3)
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        running.process.send_signal(signal.SIGTERM)
        ended = running.wait()
        assert_gone(running)
    assert check_stopped(ended, "SIGINT")["updates"] >= 3


def test_every_rank_is_told_to_terminate_twice(tmp_path):
    """As Slurm does at the end of an allocation."""
    with start(tmp_path, FOREVER, mpiexec=3) as running:
        running.until_updates(3)
        for _ in range(2):
            for pid in rank_processes(running):
                with contextlib.suppress(ProcessLookupError):  # the first one may have ended it by now
                    os.kill(pid, signal.SIGTERM)
            time.sleep(0.02)
        ended = running.wait()
        assert_gone(running)
    check_stopped(ended, "SIGTERM")


@pytest.mark.parametrize("rank", ["actor 1", "replay 0", "learner 1"])
def test_a_signal_to_one_rank_reaches_all(tmp_path, rank):
    with start(tmp_path, FOREVER, "ranks.actors=2", "ranks.learners=2") as running:
        running.until_updates(2)
        pid = running.pids()[rank]
        os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGUSR1)
        ended = running.wait()
        assert_gone(running)
    summary = check_stopped(ended, "SIGUSR1")
    world_rank = next(row["world_rank"] for row in summary["ranks"] if row["pid"] == pid)
    # a learner's own signal may be voted on before the others have heard where it came
    unnamed = rank == "learner 1" and "on rank" not in summary["cause"]
    assert unnamed or f"on rank {world_rank} " in summary["cause"]
    assert summary["weights_equal"]


def test_hpcrl_run_is_killed(tmp_path):
    """Or its terminal is closed: nobody could stop the ranks any more, so they stop themselves."""
    with start(tmp_path, FOREVER) as running:
        running.until_updates(2)
        running.process.kill()
        running.wait()
        assert_gone(running, within_s=10)
        assert running.run_dir is not None
        assert checkpoint.newest(running.run_dir).update >= 2


def test_a_signal_while_everything_starts(tmp_path):
    """Each rank has just begun, MPI and torch are still to be loaded: the run starts and stops in order."""
    with start(tmp_path, FOREVER, mpiexec=3) as running:
        running.until(lambda: len(rank_processes(running)) == 6)  # each rank and its supervisor
        for pid in rank_processes(running):
            os.kill(pid, signal.SIGTERM)
        ended = running.wait(30)
        assert_gone(running)
    assert check_stopped(ended, "SIGTERM")["updates"] == 0


def test_a_signal_to_an_actor_ends_a_long_evaluation(tmp_path):
    """The budget was used, so the run has finished; the actor itself is long done."""
    slow = ("env.id=slow", 'env.kwargs={"seconds": 1.5}', "algorithm.unroll_length=1", "budget.env_steps=1")
    with start(tmp_path, *slow) as running:
        running.until_updates(1)
        time.sleep(0.5)
        os.kill(running.pids()["actor 0"], signal.SIGUSR1)
        signaled = time.monotonic()
        ended = running.wait(20)
        assert time.monotonic() - signaled < 9  # the evaluation takes 12 s
        assert_gone(running)
    assert ended.code == 0, ended.stderr
    summary = ended.describe()
    assert (summary["status"], summary["evaluation"]) == ("finished", None)
    assert summary["events"]["evaluation_interrupted"] == 1


@pytest.mark.parametrize("seed", range(3))
def test_stopped_at_any_moment_nothing_stays_in_flight(tmp_path, seed):
    """Large messages, several of each role, a moment drawn at random: a clean end and equal weights."""
    draw = random.Random(seed)
    settings = (
        f"seed={seed}",
        f"env.num_envs={draw.choice([4, 64])}",
        f"ranks.actors={draw.choice([1, 2])}",
        f"ranks.learners={draw.choice([1, 2])}",
        f"lag.max_lag={draw.choice([0, 1, 4])}",
        f"model.hidden_sizes=[{draw.choice([4, 256])}]",
    )
    with start(tmp_path, FOREVER, *settings) as running:
        running.until_updates(1)
        time.sleep(draw.uniform(0, 1))
        running.process.send_signal(signal.SIGINT)
        ended = running.wait()
        assert_gone(running)
    assert check_stopped(ended, "")["weights_equal"]


@pytest.mark.parametrize("several", [("ranks.learners=2",), ("scheme=synchronous", "ranks.workers=3")])
def test_others_wait_for_an_evaluation_however_long_it_takes(tmp_path, several):
    """Every limit on waiting is shortened to two seconds, the evaluation takes three."""
    (tmp_path / "sitecustomize.py").write_text(
        "from hpcrl.comm.wait import Waiter\n"
        "until = Waiter.until\n"
        "Waiter.until = lambda self, ready, timeout_s=None, **how: until(self, ready, timeout_s and 2.0, **how)\n"
    )
    settings = (
        "env.id=slow",
        'env.kwargs={"seconds": 0.4}',
        "algorithm.unroll_length=1",
        "budget.env_steps=1",
    )
    ended = run(
        tmp_path,
        *settings,
        *several,
        environ={"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    assert ended.code == 0, ended.stderr
    assert ended.describe()["evaluation"]["n"] == 2
