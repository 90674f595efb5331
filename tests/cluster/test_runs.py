"""Whole runs over two nodes: the result file names both, and a rank that dies on the second ends the job."""

import contextlib
import json
import signal
import sys

import pytest

from hpcrl.storage import read_table
from tests.cluster import mpi
from tests.cluster.hosts import temporary
from tests.system.support import FOREVER, TOP, TOY, Running, assert_gone, run
from tests.system.test_failures import BOUND_S, check_failed

pytestmark = pytest.mark.usefixtures("permitted")

CHAIN = TOY | {
    "env": {"id": "chain", "engine": "toy", "num_envs": 6, "kwargs": {"seconds_per_step": 0.002}},
    "evaluation": {"episodes": 0},
    "budget": {"env_steps": 4000},
}
ROLES = ("ranks.actors=2", "ranks.replay=1", "ranks.learners=1")


@contextlib.contextmanager
def start(folder, cluster, *settings, recipe=f"{TOP}/jobs/cartpole.py:impala", resume="never"):
    """`hpcrl run` of the recipe, CartPole's if none is given, on two ranks of each of two nodes."""
    command = [sys.executable, "-m", "hpcrl", "run", recipe, "--resume", resume]
    for setting in (*ROLES, *settings):
        command += ["--set", setting]
    with contextlib.chdir(folder):
        running = Running(mpi.command(cluster, [2, 2], command), folder, {})
    try:
        yield running
    finally:
        running.kill_everything()


def test_a_run_over_two_nodes(tmp_path):
    with temporary(2) as cluster, start(tmp_path, cluster, "budget.env_steps=50000") as running:
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


def test_a_killed_run_goes_on_over_two_nodes_and_ends_as_one_on_a_single_node(tmp_path):
    periodic = ("checkpoint.every_updates=4", "deterministic=true", "storage.run_dir=runs/it")
    whole = run(tmp_path / "whole", *ROLES, "deterministic=true", recipe=CHAIN, mpiexec=4).weights()
    (tmp_path / "job.json").write_text(json.dumps(CHAIN))
    with temporary(2) as cluster:
        with start(tmp_path, cluster, *periodic, recipe="job.json") as running:
            running.until_updates(14)
            victim = read_table(running.run_dir, "ranks")[-1]
            cluster.run("node2", "kill", "-KILL", str(victim["pid"]))
            assert running.wait(BOUND_S).code == 3
        with start(tmp_path, cluster, recipe="runs/it", resume="must") as running:
            ended = running.wait()
    assert ended.weights() == whole
    assert ended.describe()["attempt_list"][1]["first_update"] >= 4
