"""A rank that lives but gets nowhere ends the job like one that died; one that is only slow does not."""

import os
import signal

import pytest

from hpcrl.storage import checkpoint
from tests.system.stuck_envs import RANK
from tests.system.support import FOREVER, WITH_TESTS, assert_gone, run, start
from tests.system.test_failures import check_failed

CAUSE = "has made no progress for 2 s (faults.stall_timeout_s)"
SHORT = "faults.stall_timeout_s=2"
STUCK = ("env.engine=custom", "env.id=tests.system.stuck_envs:make", SHORT)


@pytest.mark.parametrize("how", ["loop", "sleep"])
@pytest.mark.parametrize(
    ("name", "rank", "world"),
    [("actor 1", 3, {"mpiexec": 4}), ("replay+learner+actor 0", 0, {"ranks": 1})],
    ids=["mpiexec", "one process"],
)
def test_an_env_step_that_never_returns(tmp_path, how, name, rank, world):
    actors = "ranks.actors=2" if "mpiexec" in world else "ranks.actors=1"
    settings = (*STUCK, f'env.kwargs={{"how": "{how}"}}', actors, FOREVER, "checkpoint.every_updates=1")
    stuck = run(tmp_path, *settings, **world, environ=WITH_TESTS | {RANK: str(rank)})
    check_failed(stuck, f"{name} (rank {rank} on ", CAUSE, "; last progress: ")
    assert 'stuck_envs.py", line' in stuck.stderr and "in never_returns" in stuck.stderr
    saved = checkpoint.newest(stuck.run_dir)
    budget = f"budget.env_steps={saved.meta['env_steps'] + 400}"
    again = run(tmp_path, budget, recipe=str(stuck.run_dir), resume="must", **world, environ=WITH_TESTS)
    assert again.code == 0, again.stderr
    assert (again.describe()["attempts"], again.describe()["status"]) == (2, "finished")
    assert f"resumed at update {saved.update} from " in again.stdout


@pytest.mark.parametrize("role", ["learner", "replay"])
def test_a_rank_that_is_stopped(tmp_path, role):
    with start(tmp_path, FOREVER, SHORT) as running:
        running.until_updates(3)
        os.kill(running.pids()[f"{role} 0"], signal.SIGSTOP)
        ended = running.wait(20)
        assert_gone(running)
    check_failed(ended, f"{role} 0 (rank ", CAUSE + "; it is stopped, by a signal", "; last progress: ")


@pytest.mark.parametrize("scheme", ["pipeline", "synchronous"])
def test_a_process_of_an_environment_that_never_answers(tmp_path, scheme):
    """It hangs in the very first env_step, and would not notice that its rank is gone."""
    settings = ("env.id=tests.system.stuck_envs:StuckProcessEnv", "env.vectorization=async", "env.num_envs=2")
    ended = run(tmp_path, *STUCK[:1], *settings, SHORT, f"scheme={scheme}", ranks=1, environ=WITH_TESTS)
    check_failed(ended, CAUSE)
    assert "in step_wait" in ended.stderr


def test_busy_processes_of_a_killed_rank_are_ended(tmp_path):
    """They would not notice that their rank is gone."""
    settings = ("env.id=tests.system.stuck_envs:StuckProcessEnv", "env.vectorization=async", "env.num_envs=2")
    with start(tmp_path, *STUCK[:1], *settings, ranks=1, environ=WITH_TESTS) as running:
        running.until(lambda: len(list(tmp_path.glob("stuck-*"))) == 2)
        os.kill(running.pids()["actor 0"], signal.SIGKILL)
        ended = running.wait(20)
        assert_gone(running, within_s=0.0)
    check_failed(ended, "was killed by SIGKILL")


@pytest.mark.parametrize(
    "ranks",
    [("ranks.learners=2",), ("scheme=synchronous", "ranks.workers=2")],
    ids=["pipeline", "synchronous"],
)
def test_slow_env_steps_are_no_stall(tmp_path, ranks):
    """Trajectories and the evaluation take more than twice the limit, each env_step a third of it."""
    slow = ("env.id=slow", 'env.kwargs={"seconds": 0.66}', SHORT)
    ended = run(tmp_path, *slow, *ranks, "budget.env_steps=1", "env.num_envs=2")
    assert ended.code == 0, ended.stderr
    assert ended.named_failures() == []
    assert ended.describe()["evaluation"]["n"] == 2


@pytest.mark.parametrize(
    ("how", "waits"),
    [
        (
            ("loses_a_grant",),
            "replay 0 in role.wait; learner 0 in batch.wait; actor 0 in grant.wait",
        ),
        (
            ("loses_a_sum", "scheme=synchronous", "ranks.workers=2"),
            "workers 0-1 in learners.vote",
        ),
    ],
    ids=["pipeline", "synchronous"],
)
def test_a_run_in_which_everybody_waits_ends(tmp_path, how, waits):
    lost, *scheme = how
    custom = ("env.engine=custom", f"env.id=tests.system.stalled_envs:{lost}", *scheme)
    ended = run(tmp_path, *custom, "faults.stall_timeout_s=1.5", FOREVER, environ=WITH_TESTS)
    assert ended.code == 3, ended.stderr
    words = "no rank of the run has made progress for 3 s (twice faults.stall_timeout_s): " + waits
    assert ended.named_failures() == ["hpcrl: " + words]
    assert "RECORDS from rank 1: " in ended.stderr, "the streams of every rank are shown"
    assert ended.describe()["status"] == "failed" and ended.describe()["cause"] == words


def test_work_of_others_is_heard_of_inside_a_collective(tmp_path):
    """Worker 0 waits in a sum for more than twice the limit, while the other one steps its environments."""
    custom = ("env.engine=custom", "env.id=tests.system.stalled_envs:slow_on_rank_1", "evaluation.episodes=0")
    workers = ('env.kwargs={"seconds": 0.35}', "scheme=synchronous", "ranks.workers=2", "budget.env_steps=1")
    ended = run(tmp_path, *custom, *workers, "faults.stall_timeout_s=1", environ=WITH_TESTS)
    assert (ended.code, ended.named_failures()) == (0, []), ended.stderr


@pytest.mark.parametrize(
    ("how", "limit_s", "world", "who", "phase"),
    [
        ("for the run", 15, {"ranks": 1}, "replay+learner+actor 0 (rank 0 on ", "making what its roles need"),
        ("alone", 15, {}, "actor 0 (rank 2 on ", "making an environment for its spaces"),
    ],
    ids=["one process", "others wait"],
)
def test_a_start_that_never_ends(tmp_path, how, limit_s, world, who, phase):
    custom = (
        "env.engine=custom",
        "env.id=tests.system.stuck_envs:never_made",
        f'env.kwargs={{"how": "{how}"}}',
    )
    ended = run(tmp_path, *custom, f"faults.start_timeout_s={limit_s}", **world, environ=WITH_TESTS)
    assert ended.code == 3, ended.stderr
    (line,) = ended.named_failures()
    assert line.startswith("hpcrl: " + who)
    assert f"has not started within {limit_s} s (faults.start_timeout_s): it was {phase}" in line
    assert "in never_made" in ended.stderr


def test_a_slow_start_is_no_stall(tmp_path):
    settings = ('env.kwargs={"seconds": 6}', "env.id=tests.system.stuck_envs:make_slowly", SHORT)
    ranks = ("scheme=synchronous", "ranks.workers=2", "evaluation.episodes=0")
    ended = run(tmp_path, *STUCK[:1], *settings, *ranks, environ=WITH_TESTS)
    assert ended.code == 0, ended.stderr
