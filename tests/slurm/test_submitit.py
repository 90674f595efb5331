"""Runs submitted from Python on the login node, through submitit."""

import json
import sys

import pytest

from tests.slurm.support import FOREVER, SMALL, kill_last_rank, on_login_node, toy_recipe, until_updates
from tests.system.support import TOP

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("idle")]

PROGRAM = """\
import json, sys, submitit
from hpcrl.launch import RunFailedError, submit_seeds
submitit.SlurmJob._results_timeout_s = 1  # for a slow file system
how = json.loads(sys.argv[1])
jobs = submit_seeds(how.pop("recipe"), how.pop("seeds"), executor="slurm", **how)
for job in jobs:
    print(json.dumps({"id": job.job.job_id, "run_dir": str(job.run_dir)}), flush=True)
for job in jobs:
    try:
        print(json.dumps({"summary": job.result(), "state": job.state()}), flush=True)
    except RunFailedError as error:
        print(json.dumps({"error": str(error)}), flush=True)
"""


def start(cluster, folder, **how):
    """The program above on the login node: its process, with pipes."""
    how = {"seeds": [None], "site": str(TOP / "slurm/testcluster.toml"), "folder": str(folder / "jobs")} | how
    return on_login_node(cluster, folder, [sys.executable, "-c", PROGRAM, json.dumps(how)])


def answers(process, number):
    return [json.loads(process.stdout.readline()) for _ in range(number)]


def test_a_run_on_two_nodes(cluster, tmp_path):
    with start(
        cluster, tmp_path, recipe=f"{TOP}/jobs/cartpole.py:impala", overrides=SMALL, num_ranks=4
    ) as process:
        (job,) = answers(process, 1)
        (answer,) = answers(process, 1)
    summary = answer["summary"]
    assert summary["status"] == "finished" and summary["job"]["id"] == job["id"]
    placement = [(rank["role"], rank["node"]) for rank in summary["ranks"]]
    assert placement == [("replay", "node1"), ("learner", "node1"), ("actor", "node2"), ("actor", "node2")]


def test_seeds_are_an_array_and_one_that_fails_leaves_the_other_alone(cluster, tmp_path):
    how = {"recipe": toy_recipe(tmp_path), "seeds": [1, 2], "nodes": 1}
    with start(cluster, tmp_path, overrides=FOREVER, **how) as process:
        jobs = answers(process, 2)
        for job in jobs:
            until_updates(job["run_dir"], 3)
        kill_last_rank(cluster, jobs[0]["run_dir"])
        (first,) = answers(process, 1)
        cluster.run("scancel", "--signal=USR2", jobs[1]["id"])
        (second,) = answers(process, 1)
    assert jobs[0]["id"].removesuffix("_0") == jobs[1]["id"].removesuffix("_1")
    assert "ended with exit code 3: actor 0 (rank 2 on node" in first["error"]
    assert "ended with exit code 75: stopped by SIGUSR2" in second["error"]


def test_a_killed_rank_on_the_second_node_is_named_in_the_result(cluster, tmp_path):
    with start(cluster, tmp_path, recipe=toy_recipe(tmp_path), overrides=FOREVER, num_ranks=4) as process:
        (job,) = answers(process, 1)
        until_updates(job["run_dir"], 3)
        assert kill_last_rank(cluster, job["run_dir"]) == "node2"
        (answer,) = answers(process, 1)
    assert "ended with exit code 3: actor 1 (rank 3 on node2) was killed by SIGKILL" in answer["error"]


def test_what_does_not_fit(cluster, tmp_path):
    with start(cluster, tmp_path, recipe=toy_recipe(tmp_path), nodes=2) as process:
        _, errors = process.communicate()
    assert process.returncode != 0 and "3 ranks cannot be divided evenly over 2 nodes" in errors
