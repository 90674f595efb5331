"""Whole runs over two nodes: the result file names both, and a rank that dies on the second ends the job."""

import contextlib
import signal
import sys

import pytest

from hpcrl.storage import read_table
from tests.cluster import mpi
from tests.cluster.hosts import temporary
from tests.system.support import FOREVER, TOP, Running, assert_gone
from tests.system.test_failures import BOUND_S, check_failed

pytestmark = pytest.mark.usefixtures("permitted")

ROLES = ("ranks.actors=2", "ranks.replay=1", "ranks.learners=1")


@contextlib.contextmanager
def start(folder, cluster, *settings):
    """`hpcrl run` of the CartPole recipe on two ranks of each of two nodes."""
    command = [sys.executable, "-m", "hpcrl", "run", f"{TOP}/jobs/cartpole.py:impala"]
    for setting in (*ROLES, *settings):
        command += ["--set", setting]
    with contextlib.chdir(folder):
        running = Running(mpi.command(cluster, [2, 2], command), folder, {})
    try:
        yield running
    finally:
        running.kill_everything()


def test_a_run_over_two_nodes(tmp_path):
    with temporary(2) as cluster, start(tmp_path, cluster, "budget.env_steps=200000") as running:
        ended = running.wait()
    assert ended.code == 0, ended.stderr
    assert ended.describe()["status"] == "finished"
    rows = ended.table("ranks")
    assert [row["node"].decode() for row in rows] == ["node1", "node1", "node2", "node2"]
    assert sorted(row["role"].decode() for row in rows) == ["actor", "actor", "learner", "replay"]
    ended.weights()


def test_a_killed_rank_on_the_second_node(tmp_path):
    with temporary(2) as cluster, start(tmp_path, cluster, FOREVER) as running:
        running.until_updates(3)
        victim = read_table(running.run_dir, "ranks")[-1]
        assert victim["node"] == b"node2"
        cluster.run("node2", "kill", "-KILL", str(victim["pid"]))
        ended = running.wait(BOUND_S)
        assert_gone(running, within_s=BOUND_S)
    who = f"{victim['role'].decode()} {victim['role_rank']} (rank 3 on node2)"
    check_failed(ended, who, "was killed by SIGKILL", "last progress: ")


def test_ctrl_c_stops_a_run_over_two_nodes(tmp_path):
    with temporary(2) as cluster, start(tmp_path, cluster, FOREVER) as running:
        running.until_updates(3)
        running.process.send_signal(signal.SIGINT)
        ended = running.wait()
    assert ended.code == 75, ended.stderr
    assert ended.describe()["status"] == "stopped"
