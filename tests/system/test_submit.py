"""Runs submitted from Python to local executors; tests/slurm does it with a real Slurm."""

import os
import signal
import subprocess
import sys

import pytest
import submitit

from hpcrl.config import ConfigError, RunConfig, SiteConfig
from hpcrl.launch import RunFailedError, submit, submit_seeds, submit_sweep
from tests.system.support import FOREVER, TOY, WITH_TESTS

RECIPE = RunConfig.parse(TOY)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Jobs run in a folder of this test's own, with this package and one thread per rank."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", WITH_TESTS["PYTHONPATH"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_local_run(tmp_path):
    job = submit(RECIPE, overrides=["seed=3"], folder=tmp_path / "jobs")
    summary = job.result()
    assert (summary["status"], summary["seed"], summary["run_dir"]) == ("finished", 3, str(job.run_dir))
    assert len(summary["ranks"]) == 3
    assert str(job.run_dir) in "".join(job.logs())


def test_seeds_have_directories_of_their_own(tmp_path):
    jobs = submit_seeds(RECIPE, [4, 5], num_ranks=1, folder=tmp_path / "jobs")
    assert [job.result()["seed"] for job in jobs] == [4, 5]
    assert len({job.run_dir for job in jobs}) == 2


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["here", "background"])
def test_a_cancelled_run_fails(tmp_path, monkeypatch, handler):
    """Also when a shell script has put this process into the background, where it ignores SIGINT."""
    monkeypatch.setattr(submitit.LocalJob, "_results_timeout_s", 0.1)  # for a slow file system
    before = signal.signal(signal.SIGINT, handler)
    try:
        job = submit(RECIPE, overrides=[FOREVER], num_ranks=1, folder=tmp_path / "jobs")
    finally:
        assert signal.signal(signal.SIGINT, before) is handler
    job.cancel()
    job.job._process.wait(30)
    with pytest.raises(RunFailedError):
        job.result()


def test_a_run_goes_on_in_its_directory(tmp_path):
    how = {"num_ranks": 1, "folder": tmp_path / "jobs"}
    first = submit(RECIPE, overrides=["storage.run_dir=it"], **how).result()
    more = ["storage.run_dir=it", "budget.env_steps=800"]
    second = submit(RECIPE, overrides=more, resume="must", **how).result()
    assert (first["attempts"], second["attempts"]) == (1, 2)
    assert second["env_steps"] >= 800 > first["env_steps"]
    with pytest.raises(ConfigError, match="already holds a run"):
        submit(RECIPE, overrides=more, **how)


def test_debug_runs_every_role_in_the_very_process(tmp_path):
    program = (
        "import os, sys\n"
        "from hpcrl.config import RunConfig\n"
        "from hpcrl.launch import submit\n"
        f"job = submit(RunConfig.parse({TOY!r}), executor='debug')\n"
        "assert job.state() == 'QUEUED'\n"
        "summary = job.result()\n"
        "assert [rank['pid'] for rank in summary['ranks']] == [os.getpid()] * 3\n"
        "sys.stderr.write(f'{job.state()} {summary[\"status\"]}\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1:] == ["DONE finished"], done.stderr


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ({"executor": "cloud"}, "executor='cloud'; use 'local', 'slurm', 'debug'"),
        ({"overrides": ["env.num_env=3"]}, "did you mean num_envs"),
        ({"time": "soon"}, "time limit 'soon'"),
        ({"site": "nowhere"}, "no site 'nowhere'"),
        ({"sweep": {"seed": [1, 2]}, "overrides": ["storage.run_dir=x"]}, "one directory for all runs"),
        ({"sweep": {"algorithm.gamma": [0.9, 2]}}, "with algorithm.gamma=2: algorithm.gamma=2"),
        ({"executor": "slurm", "nodes": 4}, "4 nodes for 3 ranks"),
        ({"executor": "slurm", "time": "2"}, "2 minutes is over before the signal"),
        ({"executor": "slurm", "site": SiteConfig(launcher="mpiexec")}, "launcher='mpiexec'"),
        ({"executor": "slurm", "site": SiteConfig(sbatch=("-x n1",))}, "'-x n1'"),
    ],
)
def test_what_does_not_fit(tmp_path, how, part):
    sweep = how.pop("sweep", {})
    with pytest.raises(ConfigError) as error:
        submit_sweep(RECIPE, sweep, **how)
    assert part in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_the_executor_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path)]))
    with pytest.raises(ConfigError, match=r"executor='slurm': .*srun"):
        submit(RECIPE, executor="slurm")
