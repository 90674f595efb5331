"""Runs that go on over several attempts of one job, and in the end are as if they had not been cut."""

import json

import pytest

from tests.slurm.support import submit, until_updates, wait_until
from tests.system.support import TOY

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("idle")]

SLOWED = TOY | {
    "env": {"id": "chain", "engine": "toy", "num_envs": 6, "kwargs": {"seconds_per_step": 0.002}},
    "deterministic": True,
    "budget": {"env_steps": 12000},
    "evaluation": {"episodes": 0},
}
"""A run of about 250 updates and six seconds whose environments can be saved."""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "chain.json").write_text(json.dumps(SLOWED))
    return "chain.json"


def test_a_run_that_is_stopped_ends_with_the_same_weights(cluster, tmp_path, recipe):
    """Stopped by a signal on two nodes, requeued by its script, finished by the second attempt."""
    stopped = submit(cluster, tmp_path, recipe=recipe)
    until_updates(stopped.run_dir, 20)
    cluster.run("scancel", "--signal=USR1", stopped.number)
    whole = submit(cluster, tmp_path, recipe=recipe)
    assert whole.until_over() == ("COMPLETED", "0:0"), whole.text()
    assert stopped.until_over() == ("COMPLETED", "0:0"), stopped.text()
    assert stopped.field("Restarts") == "1"
    summary, expected = stopped.describe(), whole.describe()
    assert summary["status"] == expected["status"] == "finished"
    assert [attempt["end"] for attempt in summary["attempt_list"]] == ["stopped", "finished"]
    assert summary["env_steps"] == expected["env_steps"]
    assert summary["weights_sha256"] == expected["weights_sha256"]


def test_a_requeued_job_whose_run_has_finished_ends_with_0(cluster, tmp_path, recipe):
    """A person, or Slurm after the death of a node, may requeue at any time."""
    job = submit(cluster, tmp_path, "budget.env_steps=400", recipe=recipe)
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    before = job.describe()
    cluster.run("scontrol", "requeue", job.number)
    job.until(lambda: job.field("Restarts") == "1" and job.field("JobState") == "COMPLETED")
    assert job.text().count("hpcrl ended with exit code 0") == 2
    assert job.describe()["weights_sha256"] == before["weights_sha256"]
    assert job.describe()["attempts"] == 1


WORKERS = SLOWED | {
    "scheme": "synchronous",
    "ranks": {"workers": 3},
    "env": SLOWED["env"] | {"kwargs": {"seconds_per_step": 0.005}},
    "algorithm": {"name": "ppo", "unroll_length": 8, "epochs": 2, "num_minibatches": 2},
}


def test_four_attempts(cluster, tmp_path):
    (tmp_path / "workers.json").write_text(json.dumps(WORKERS))
    job = submit(cluster, tmp_path, recipe="workers.json")
    for attempt in range(1, 4):
        until_updates(job.run_dir, 15 * attempt)
        cluster.run("scancel", "--signal=USR1", job.number)
        wait_until(lambda: job.field("Restarts") == str(attempt), job.text)  # noqa: B023 - called here
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    whole = submit(cluster, tmp_path, recipe="workers.json")
    assert whole.until_over() == ("COMPLETED", "0:0"), whole.text()
    summary, expected = job.describe(), whole.describe()
    assert (summary["status"], summary["attempts"], expected["attempts"]) == ("finished", 4, 1)
    assert summary["env_steps"] == expected["env_steps"]
    assert summary["weights_sha256"] == expected["weights_sha256"]
