"""Training runs as jobs of a real Slurm on two nodes."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.slurm.support import (
    FOREVER,
    RECIPE,
    SMALL,
    hpcrl,
    kill_last_rank,
    on_login_node,
    site_with,
    submit,
    toy_recipe,
    until_updates,
)
from tests.system.support import TOP

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("idle")]


def placement(job):
    """(role, node) of each rank, in the order of ranks."""
    return [(rank["role"], rank["node"]) for rank in job.describe()["ranks"]]


def test_a_run_on_two_nodes(cluster, tmp_path):
    job = submit(cluster, tmp_path, *SMALL)
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    assert placement(job) == [("replay", "node1"), ("learner", "node1"), ("actor", "node2")]
    code, said, errors = hpcrl(cluster, tmp_path, "describe", job.run_dir)
    assert (code, errors) == (0, "")
    assert re.search(rf"^job +{job.number} on ", said, re.MULTILINE), said
    assert "node1" in said and "node2" in said
    assert job.describe()["status"] == "finished"
    assert "hpcrl ended with exit code 0" in job.text()


def test_mpi_starts_whatever_lies_on_the_heap(cluster):
    program = [sys.executable, str(Path(__file__).parent / "used_heap.py")]
    said = cluster.run("srun", "--mpi=pmi2", "--nodes=2", "--ntasks=3", *program)
    assert said.split() == ["3"] * 3


def test_threads_follow_the_profile(cluster, tmp_path):
    job = submit(cluster, tmp_path, recipe=toy_recipe(tmp_path), site=site_with(tmp_path, cpus_per_rank=2))
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    assert {rank["threads"] for rank in job.describe()["ranks"]} == {2}


def test_a_heterogeneous_job_is_one_world(cluster, tmp_path):
    site = site_with(tmp_path, cpus_per_rank=1)
    site.write_text(site.read_text() + "\n[learners]\ncpus_per_rank = 2\n")
    job = submit(cluster, tmp_path, *SMALL, "ranks.actors=2", site=site, options=["--het", "--nodes", "1"])
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    assert placement(job) == [
        ("replay", "node1"),
        ("learner", "node1"),
        ("actor", "node2"),
        ("actor", "node2"),
    ]
    assert [rank["threads"] for rank in job.describe()["ranks"]] == [2, 2, 1, 1]
    assert job.describe()["job"]["id"] == job.number


def test_an_array_over_settings_and_seeds(cluster, tmp_path):
    """One job; each task has settings, directory and log of its own."""
    options = ["--sweep", "algorithm.learning_rate=1e-3,3e-4", "--seeds", "3,5", "--nodes", "1"]
    job = submit(cluster, tmp_path, recipe=toy_recipe(tmp_path), options=options)
    job.until(lambda: cluster.run("squeue", "--noheader") == "")
    for task, (rate, seed) in enumerate([("1e-3", 3), ("1e-3", 5), ("3e-4", 3), ("3e-4", 5)]):
        run_dir = tmp_path / "runs" / f"toy-learning_rate={rate}-{seed}-{job.number}"
        assert json.loads((run_dir / "status.json").read_text())["status"] == "finished", job.text()
        config = json.loads((run_dir / "config.json").read_text())
        assert (config["algorithm"]["learning_rate"], config["seed"]) == (float(rate), seed)
        assert "hpcrl ended with exit code 0" in (tmp_path / f"toy-{job.number}_{task}.log").read_text()
    assert len(list((tmp_path / "runs").iterdir())) == 4


LAST_ATTEMPT = {"max_attempts": 1}


def check_stopped(job):
    assert job.until_over() == ("FAILED", "75:0"), job.text()
    summary = job.describe()
    assert (summary["status"], summary["exit_code"]) == ("stopped", 75)
    assert {rank["node"] for rank in summary["ranks"]} == {"node1", "node2"}
    assert "hpcrl ended with exit code 75\nnot requeued: this was attempt 1 of at most 1" in job.text()
    assert job.field("Restarts") == "0"
    return summary["cause"]


def test_the_signal_before_the_time_limit_stops_the_run(cluster, tmp_path):
    """Slurm looks at its clock every 30 seconds."""
    site = site_with(tmp_path, signal_lead_s=50, **LAST_ATTEMPT)
    settings = (*FOREVER, "checkpoint.margin_s=0")  # else the run stops itself before the signal
    job = submit(
        cluster, tmp_path, *settings, recipe=toy_recipe(tmp_path), site=site, options=["--time", "1"]
    )
    assert "SIGUSR1" in check_stopped(job)


def test_ranks_that_mpiexec_started_are_stopped_by_the_script(cluster, tmp_path):
    site = site_with(tmp_path, launcher="mpiexec", **LAST_ATTEMPT)
    job = submit(cluster, tmp_path, *FOREVER, recipe=toy_recipe(tmp_path), site=site)
    until_updates(job.run_dir, 3)
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)  # as sbatch --signal=B:USR1@... does
    check_stopped(job)


@pytest.mark.parametrize("options", [[], ["--het", "--nodes", "1"]], ids=["one component", "heterogeneous"])
def test_a_killed_rank_ends_the_job(cluster, tmp_path, options):
    job = submit(cluster, tmp_path, *FOREVER, recipe=toy_recipe(tmp_path), options=options)
    until_updates(job.run_dir, 3)
    ranks = job.describe()["ranks"]
    assert kill_last_rank(cluster, job.run_dir) == ranks[-1]["node"] == "node2"
    who = f"actor 0 (rank {ranks[-1]['world_rank']} on node2)"
    assert job.until_over(within_s=15) == ("FAILED", "3:0"), job.text()
    assert f"hpcrl: {who} was killed by SIGKILL" in job.text()
    assert job.describe()["cause"].startswith(f"{who} was killed by SIGKILL")
    assert "hpcrl ended with exit code 3" in job.text() and "requeue" not in job.text()


def test_a_cancelled_job_is_not_requeued(cluster, tmp_path):
    job = submit(cluster, tmp_path, *FOREVER, recipe=toy_recipe(tmp_path))
    until_updates(job.run_dir, 3)
    cluster.run("scancel", job.number)
    assert job.until_over()[0] == "CANCELLED"
    job.until(lambda: job.describe()["status"] == "stopped")
    assert job.field("Restarts") == "0"


@pytest.mark.parametrize(
    ("changes", "settings", "parts"),
    [
        ({"mpi": "none"}, (), ("3 tasks", "without an MPI interface", "rank 0 of 1", "--mpi=pmi2")),
        ({"mpi": "pmix"}, (), ("3 processes", "PMIx", "MPICH", "rank 0 of 1", "--mpi=pmi2")),
        (
            {"launcher_options": ["--nodes=1", "--overcommit"]},
            (),
            ("2 nodes", "3 ranks", "all on one host, node1", "ranks.nodes=1"),
        ),
        ({"nodes": 1}, ("ranks.nodes=2",), ("ranks.nodes=2", "are on 1: node1")),
    ],
    ids=["no MPI plugin", "another MPI's plugin", "all on one host", "fewer nodes than the recipe wants"],
)
def test_what_is_refused(cluster, tmp_path, changes, settings, parts):
    """Exit code 2 and one sentence; no run directory, no requeue."""
    job = submit(
        cluster, tmp_path, *settings, recipe=toy_recipe(tmp_path), site=site_with(tmp_path, **changes)
    )
    assert job.until_over() == ("FAILED", "2:0"), job.text()
    (line,) = [line for line in job.text().splitlines() if line.startswith("hpcrl: ")]
    for part in parts:
        assert part in line
    assert not (tmp_path / "runs").exists()
    assert "requeue" not in job.text()


def test_all_on_one_host_where_that_is_meant(cluster, tmp_path):
    site = site_with(tmp_path, launcher_options=["--nodes=1", "--overcommit"])
    job = submit(cluster, tmp_path, "ranks.nodes=1", recipe=toy_recipe(tmp_path), site=site)
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    assert {node for _, node in placement(job)} == {"node1"}


def test_what_sbatch_refuses_is_told(cluster, tmp_path):
    site = site_with(tmp_path, partition="nowhere")
    code, output, errors = hpcrl(cluster, tmp_path, "submit", f"{RECIPE}:impala", "--site", site)
    assert (code, output) == (2, "")
    assert errors.startswith("hpcrl: sbatch refused the job: ") and "partition" in errors


def test_the_doctor_looks_at_every_node_of_an_allocation(cluster, tmp_path):
    site = tomllib.loads((TOP / "slurm/testcluster.toml").read_text())
    variables = [f"{name}={value}" for name, value in site["environment"].items()]
    srun = ["env", *variables, "srun", "--nodes=2", "--ntasks=3", "--kill-on-bad-exit=1"]
    command = [sys.executable, "-m", "hpcrl", "doctor", "--json"]

    def doctor(*start):
        process = on_login_node(cluster, tmp_path, [*start, *command])
        output, errors = process.communicate()
        if process.returncode == 0:
            assert output.startswith("{\n"), output + errors
        return process.returncode, output, errors

    code, output, errors = doctor(*srun, "--mpi=pmi2")
    assert code == 0, (code, output, errors)
    result = json.loads(output)
    assert result["launcher"] == "srun"
    assert sorted(seat["node"] for seat in result["seats"]) == ["node1", "node1", "node2"]
    code, output, errors = doctor(*srun, "--mpi=pmix")
    assert (code, output) == (2, "") and "does not speak" in errors
    code, output, _ = doctor()
    assert code == 0 and "srun --mpi=pmi2" in json.loads(output)["starters"]
