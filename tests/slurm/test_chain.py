"""Runs that are cut into attempts of one job: each goes on where the one before was, and nothing shows in the end."""

import json

import pytest

from tests.slurm.support import submit, until_updates, wait_until
from tests.system.support import TOY

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("idle")]

CHAINS = {
    "synchronous": {"scheme": "synchronous", "ranks": {"workers": 3}},
    "pipeline": {"deterministic": True},
}
"""Three ranks on two nodes, whose environments can be saved."""
SLOW = 'env.kwargs={"seconds_per_step": 0.005}'


@pytest.fixture(params=CHAINS)
def recipe(request, tmp_path):
    """About a hundred updates."""
    algorithm = {"synchronous": {"name": "ppo", "unroll_length": 8, "epochs": 2, "num_minibatches": 2}}
    changed = {
        "env": {"id": "chain", "engine": "toy", "num_envs": 9},
        "evaluation": {"episodes": 0},
        "budget": {"env_steps": 7200},
        **CHAINS[request.param],
    }
    changed["algorithm"] = algorithm.get(request.param, TOY["algorithm"])
    (tmp_path / "chain.json").write_text(json.dumps(TOY | changed))
    return "chain.json"


def in_one(cluster, folder, recipe):
    """Weights of the run that nothing happened to."""
    job = submit(cluster, folder, recipe=recipe)
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    assert job.describe()["attempts"] == 1
    return job.describe()["weights_sha256"]


def check(job, attempts, weights, within_s=180.0):
    assert job.until_over(within_s) == ("COMPLETED", "0:0"), job.text()
    summary = job.describe()
    assert (summary["status"], summary["env_steps"] >= 7200) == ("finished", True)
    assert summary["attempts"] == int(job.field("Restarts")) + 1 >= attempts
    assert summary["weights_sha256"] == weights
    assert job.text().count("requeueing job") == summary["attempts"] - 1


def test_stopped_by_a_signal_again_and_again(cluster, tmp_path, recipe):
    weights = in_one(cluster, tmp_path, recipe)
    job = submit(cluster, tmp_path, SLOW, recipe=recipe)
    for attempt in range(1, 4):
        until_updates(job.run_dir, 15 * attempt)
        cluster.run("scancel", "--signal=USR1", job.number)  # to all tasks, as sbatch --signal does
        wait_until(lambda: job.field("Restarts") == str(attempt), job.text)  # noqa: B023 - waited for here
    check(job, 4, weights)


@pytest.mark.stress
def test_cut_by_the_time_limit(cluster, tmp_path, recipe):
    """Slurm looks at its clock every 30 seconds: of each minute's attempt between 10 and 40 are work."""
    weights = in_one(cluster, tmp_path, recipe)
    slower = 'env.kwargs={"seconds_per_step": 0.15}'
    job = submit(cluster, tmp_path, slower, "checkpoint.margin_s=25", recipe=recipe, options=["--time", "1"])
    check(job, 4, weights, within_s=900.0)
