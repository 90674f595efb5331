"""Runs submitted from Python on the login node, through submitit."""

import json
import sys

import pytest

from tests.slurm.support import (
    FOREVER,
    LIMIT_S,
    SMALL,
    cut_recipe,
    kill_last_rank,
    on_login_node,
    site_with,
    toy_recipe,
    until_updates,
)
from tests.system.support import TOP

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("idle")]

PROGRAM = """\
import json, sys, time
from hpcrl.launch import RunFailedError, submit_seeds, submitted
submitted.LOOK_EVERY_S = 0.3  # for a busy scheduler
how = json.loads(sys.argv[1])
chain = how.pop("chain", 1)
jobs = submit_seeds(executor="slurm", **how)
for _ in range(1, chain):
    how["slurm"] = {"dependency": f"afterany:{jobs[-1].job.job_id}"}
    jobs += submit_seeds(executor="slurm", **how)
for job in jobs:
    print(json.dumps({"id": job.job.job_id, "run_dir": str(job.run_dir)}), flush=True)
for job in jobs:
    try:
        answer = {"summary": job.result()}
    except RunFailedError as error:
        answer = {"error": str(error)}
    while job.state() in ("RUNNING", "COMPLETING"):  # the last results are there a moment before
        time.sleep(0.1)
    print(json.dumps(answer | {"state": job.state(), "output": job.logs()[0]}), flush=True)
"""


def start(cluster, folder, limit_s=2 * LIMIT_S, **how):
    """The program above on the login node: its process, with pipes. `chain`: so many jobs, one after the other."""
    how = {"seeds": [None], "site": str(TOP / "slurm/testcluster.toml"), "folder": str(folder / "jobs")} | how
    return on_login_node(cluster, folder, [sys.executable, "-c", PROGRAM, json.dumps(how)], limit_s)


def answers(process, number):
    return [json.loads(process.stdout.readline()) for _ in range(number)]


def test_a_run_on_two_nodes(cluster, tmp_path):
    with start(cluster, tmp_path, recipe=f"{TOP}/jobs/cartpole.py:impala", overrides=SMALL) as process:
        (job,) = answers(process, 1)
        (answer,) = answers(process, 1)
    summary = answer["summary"]
    assert summary["status"] == "finished" and summary["job"]["id"] == job["id"]
    assert answer["state"] == "COMPLETED"
    placement = [(rank["role"], rank["node"]) for rank in summary["ranks"]]
    assert placement == [("replay", "node1"), ("learner", "node1"), ("actor", "node2")]


def test_of_an_array_a_run_that_stops_goes_on_and_one_that_is_cancelled_does_not(cluster, tmp_path):
    with start(cluster, tmp_path, recipe=cut_recipe(tmp_path), seeds=[1, 2], nodes=1) as process:
        jobs = answers(process, 2)
        for job in jobs:
            until_updates(job["run_dir"], 20)
        cluster.run("scancel", "--signal=USR2", jobs[1]["id"])
        cluster.run("scancel", jobs[0]["id"])
        cancelled, stopped = answers(process, 2)
    assert jobs[0]["id"].removesuffix("_0") == jobs[1]["id"].removesuffix("_1")
    assert "the job, which is CANCELLED, is over" in cancelled["error"]
    assert "requeueing" not in cancelled["output"]
    assert (cancelled["state"], stopped["state"]) == ("CANCELLED", "COMPLETED")
    summary = stopped["summary"]
    assert [attempt["end"] for attempt in summary["attempt_list"]] == ["stopped", "finished"]
    assert (summary["status"], summary["seed"]) == ("finished", 2)
    requeueing = f"requeueing job {jobs[1]['id']} after attempt 1 of at most 10"
    assert stopped["output"].count("requeueing job") == stopped["output"].count(requeueing) == 1
    assert stopped["output"].count(str(summary["run_dir"])) >= 2  # the log has both attempts


def test_a_run_that_stops_in_its_last_attempt(cluster, tmp_path):
    how = {"recipe": toy_recipe(tmp_path), "site": str(site_with(tmp_path, max_attempts=1))}
    with start(cluster, tmp_path, overrides=FOREVER, **how) as process:
        (job,) = answers(process, 1)
        until_updates(job["run_dir"], 3)
        cluster.run("scancel", "--signal=USR2", job["id"])
        (answer,) = answers(process, 1)
    assert "ended with exit code 75: stopped by SIGUSR2" in answer["error"]
    assert answer["state"] == "FAILED"
    assert "not requeued: this was attempt 1 of at most 1" in answer["output"]


def test_a_killed_rank_on_the_second_node_is_named_in_the_result(cluster, tmp_path):
    with start(cluster, tmp_path, recipe=toy_recipe(tmp_path), overrides=FOREVER, num_ranks=4) as process:
        (job,) = answers(process, 1)
        until_updates(job["run_dir"], 3)
        assert kill_last_rank(cluster, job["run_dir"]) == "node2"
        (answer,) = answers(process, 1)
    assert "ended with exit code 3: actor 1 (rank 3 on node2) was killed by SIGKILL" in answer["error"]
    assert answer["state"] == "FAILED" and "requeue" not in answer["output"]


def test_what_does_not_fit(cluster, tmp_path):
    with start(cluster, tmp_path, recipe=toy_recipe(tmp_path), nodes=4) as process:
        _, errors = process.communicate()
    assert process.returncode != 0 and "4 nodes for 3 ranks" in errors
