"""The batch script of a run that submitit submits; sbatch is a stand-in."""

import os
import pickle
import re
import shlex

import pytest

from hpcrl.config import ConfigError, RunConfig, SiteConfig
from hpcrl.launch import submit, submit_sweep
from hpcrl.launch.script import END, THREADS, UNEVEN
from tests.system.support import TOY


@pytest.fixture
def script(tmp_path, monkeypatch):
    def submit(seeds, site=None, sweep=None, **how):
        for name in ("srun", "sbatch"):
            (tmp_path / name).write_text(
                f"#!/bin/sh\necho x >> {tmp_path}/sent\n"
                f"echo Submitted batch job $((6 + $(wc -l < {tmp_path}/sent)))\n"
            )
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "sent").write_text("")
        jobs = submit_sweep(
            RunConfig.parse(TOY),
            {**(sweep or {}), "seed": seeds},
            executor="slurm",
            site=SiteConfig.parse(site or {}),
            folder=tmp_path / "jobs",
            **how,
        )
        return jobs, (tmp_path / "jobs" / "7_submission.sh").read_text()

    return submit


def test_it_ends_as_that_of_hpcrl_submit(script):
    jobs, text = script([3, 4], {"max_attempts": 5})
    assert text.endswith(END) and "\nMAX_ATTEMPTS=5\n" in text and "#SBATCH --requeue\n" in text
    assert "\n# teardown\nstatus=$?\n" in text
    directories = " ".join(str(job.run_dir) for job in jobs)
    assert f"\nRUN_DIRS=({directories})\nRUN_DIR=${{RUN_DIRS[${{SLURM_ARRAY_TASK_ID:-0}}]}}\n" in text
    assert "NO_REQUEUE='the site" in script([3], {"requeue": False})[1]
    assert "#SBATCH --no-requeue\n" in script([3], {"requeue": False})[1]


def test_ranks_that_do_not_divide_evenly(script):
    ((job,), text) = script([3], nodes=2)
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks=3", "#SBATCH --ntasks-per-node=2"} <= set(
        text.splitlines()
    )
    assert THREADS in text and UNEVEN in text
    assert job.job.num_tasks == 3
    assert UNEVEN not in script([3], nodes=1)[1]


def test_parameters_of_the_caller_join_those_of_the_profile(script):
    site = {"environment": {"A": "1"}, "sbatch": ["--mem=1G", "--exclusive"]}
    slurm = {"setup": ["export A=2"], "teardown": ["echo over"], "additional_parameters": {"mem": "2G"}}
    _, text = script([3], site, slurm=slurm | {"srun_args": ["--label"], "partition": "long"})
    assert text.index('export A="1"') < text.index("export A=2") < text.index("\nsrun ")
    assert "\nstatus=$?\necho over\nNO_REQUEUE" in text
    assert {
        "#SBATCH --mem=2G",
        "#SBATCH --exclusive",
        "#SBATCH --ntasks=3",
        "#SBATCH --partition=long",
    } <= set(text.splitlines())
    (srun,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert "--mpi=pmi2 --kill-on-bad-exit=1 --open-mode=append --label" in srun


def test_a_sweep_is_one_array_and_each_job_of_a_chain_another(script, tmp_path):
    jobs, text = script([3, 4], sweep={"algorithm.gamma": [0.9, 0.99]}, chain=3)
    assert "#SBATCH --array=0-3%" in text and "--dependency" not in text
    names = [re.sub("[0-9a-f]{8}$", "", job.run_dir.name) for job in jobs]
    assert names == ["toy-gamma=0.9-3-", "toy-gamma=0.9-4-", "toy-gamma=0.99-3-", "toy-gamma=0.99-4-"]
    assert len({job.run_dir.name.rpartition("-")[2] for job in jobs}) == 1
    for task, job in enumerate(jobs):
        assert [one.job_id for one in (job.job, *job.later)] == [f"{number}_{task}" for number in (7, 8, 9)]
        assert [one.num_tasks for one in job.later] == [3, 3]
    for number in (8, 9):
        later = (tmp_path / "jobs" / f"{number}_submission.sh").read_text()
        assert f"#SBATCH --dependency=afterany:{number - 1}\n" in later
        directories = shlex.join(str(job.run_dir) for job in jobs)
        assert f"RUN_DIRS=({directories})" in later
        assert later.endswith(END)
        with (tmp_path / "jobs" / f"{number}_1_submitted.pkl").open("rb") as file:
            _, _, mode = pickle.load(file).args
        assert mode == "if-exists"


@pytest.mark.parametrize("how", [{"chain": 0}, {"executor": "local", "chain": 2}])
def test_chains_that_there_are_not(how):
    with pytest.raises(ConfigError, match=r"chain=. with executor="):
        submit(RunConfig.parse(TOY), **how)
