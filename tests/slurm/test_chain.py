"""Runs that go on over several attempts, and in the end are as if they had not been cut."""

import pytest

from tests.slurm.support import (
    CUT_WORKERS,
    check_same_run,
    cut_recipe,
    kill_all_ranks,
    later_jobs,
    submit,
    until_updates,
    wait_until,
)

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("idle")]


def test_a_run_that_is_stopped_ends_with_the_same_weights(cluster, tmp_path):
    """Stopped by a signal on two nodes, requeued by its script, finished by the second attempt.

    The second job of the chain waits for that and has nothing to do.
    """
    recipe = cut_recipe(tmp_path)
    stopped = submit(cluster, tmp_path, recipe=recipe, options=["--chain", "2"])
    (later,) = later_jobs(stopped, 2)
    until_updates(stopped.run_dir, 10)
    cluster.run("scancel", "--signal=USR1", stopped.number)
    whole = submit(cluster, tmp_path, recipe=recipe)
    assert whole.until_over() == ("COMPLETED", "0:0"), whole.text()
    assert stopped.until_over() == ("COMPLETED", "0:0"), stopped.text()
    assert later.until_over() == ("COMPLETED", "0:0"), stopped.text()
    assert (stopped.field("Restarts"), later.field("Restarts")) == ("1", "0")
    assert later.field("StartTime") >= stopped.field("EndTime")
    check_same_run(stopped.describe(), whole.describe(), attempts=2)
    assert [attempt["end"] for attempt in stopped.describe()["attempt_list"]] == ["stopped", "finished"]


def test_a_requeued_job_whose_run_has_finished_ends_with_0(cluster, tmp_path):
    """A person, or Slurm after the death of a node, may requeue at any time."""
    job = submit(cluster, tmp_path, "budget.env_steps=400", recipe=cut_recipe(tmp_path))
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    before = job.describe()
    cluster.run("scontrol", "requeue", job.number)
    job.until(lambda: job.field("Restarts") == "1" and job.field("JobState") == "COMPLETED")
    assert job.text().count("hpcrl ended with exit code 0") == 2
    assert job.describe()["weights_sha256"] == before["weights_sha256"]
    assert job.describe()["attempts"] == 1


def test_three_attempts(cluster, tmp_path):
    recipe = cut_recipe(tmp_path, CUT_WORKERS)
    job = submit(cluster, tmp_path, recipe=recipe)
    for attempt in range(1, 3):
        until_updates(job.run_dir, 5, attempt)
        cluster.run("scancel", "--signal=USR1", job.number)
        wait_until(lambda: job.field("Restarts") == str(attempt), job.text)  # noqa: B023 - called here
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    whole = submit(cluster, tmp_path, recipe=recipe)
    assert whole.until_over() == ("COMPLETED", "0:0"), whole.text()
    check_same_run(job.describe(), whole.describe(), attempts=3)


def test_a_chain_goes_on_after_kills(cluster, tmp_path):
    """Without a chance to save: the job fails, and the next one goes on from the newest checkpoint."""
    recipe = cut_recipe(tmp_path, CUT_WORKERS)
    first = submit(cluster, tmp_path, "checkpoint.every_updates=5", recipe=recipe, options=["--chain", "3"])
    jobs = [first, *later_jobs(first, 3)]
    for attempt, job in enumerate(jobs[:2], 1):
        until_updates(first.run_dir, 10, attempt)
        kill_all_ranks(cluster, first.run_dir)
        assert job.until_over() == ("FAILED", "3:0"), job.text()
    whole = submit(cluster, tmp_path, recipe=recipe)
    assert jobs[2].until_over() == ("COMPLETED", "0:0"), first.text()
    assert whole.until_over() == ("COMPLETED", "0:0"), whole.text()
    check_same_run(first.describe(), whole.describe(), attempts=3)
    assert first.describe()["job"]["id"] == jobs[2].number
    assert all(job.field("Restarts") == "0" for job in jobs)
