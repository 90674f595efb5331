"""Runs submitted from Python on the login node, through submitit."""

import json
import sys

import pytest

from tests.slurm.support import (
    CUT_WORKERS,
    FOREVER,
    LIMIT_S,
    SMALL,
    cut_recipe,
    kill_all_ranks,
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
from hpcrl.launch import RunFailedError, submit_sweep, submitted
submitted.LOOK_EVERY_S = 0.3  # for a busy scheduler
jobs = submit_sweep(executor="slurm", **json.loads(sys.argv[1]))
for job in jobs:
    ids = [one.job_id for one in (job.job, *job.later)]
    print(json.dumps({"id": ids[0], "later": ids[1:], "run_dir": str(job.run_dir)}), flush=True)
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
    """The program above on the login node: its process, with pipes."""
    how = {"sweep": {}, "site": str(TOP / "slurm/testcluster.toml"), "folder": str(folder / "jobs")} | how
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
    with start(cluster, tmp_path, recipe=cut_recipe(tmp_path), sweep={"seed": [1, 2]}, nodes=1) as process:
        jobs = answers(process, 2)
        for job in jobs:
            until_updates(job["run_dir"], 10)
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


def test_each_run_of_a_sweep_goes_on_in_the_next_job_of_its_chain(cluster, tmp_path):
    """Without a chance to save: the job fails, and the next one goes on from the newest checkpoint."""
    recipe = cut_recipe(tmp_path, CUT_WORKERS | {"budget": {"env_steps": 1500}, "ranks": {"workers": 1}})
    how = {"sweep": {"algorithm.learning_rate": [1e-3], "seed": [1, 2]}, "chain": 2, "nodes": 1}
    with start(cluster, tmp_path, recipe=recipe, overrides=["checkpoint.every_updates=2"], **how) as process:
        jobs = answers(process, 2)
        until_updates(jobs[1]["run_dir"], 6)
        kill_all_ranks(cluster, jobs[1]["run_dir"])
        whole, killed = (answer["summary"] for answer in answers(process, 2))
    assert (whole["attempts"], killed["attempts"]) == (1, 2)
    for seed, job, summary in zip([1, 2], jobs, [whole, killed], strict=True):
        assert (summary["status"], summary["run_dir"]) == ("finished", job["run_dir"])
        assert f"/cut-learning_rate=0.001-{seed}-" in job["run_dir"]
    assert killed["job"]["id"].partition("_")[0] == jobs[1]["later"][0].partition("_")[0]


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
