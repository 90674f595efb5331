"""The table and picture of a lag study, from result files; and what the study would run."""

import importlib.util
import subprocess
import sys

import pandas as pd
import pytest

from hpcrl.config import RunConfig
from hpcrl.storage import TABLES, RunDirectory, RunLog
from tests.unit.analysis.support import ANALYSIS, POISON

JOB = ANALYSIS.parent / "jobs" / "lag_study.py"


def make_run(folder, case, lag, seed, returns, code=0):
    config = RunConfig.parse(
        {
            "name": f"{case}-k{lag}",
            "seed": seed,
            "scheme": "synchronous",
            "env": {"id": "CartPole-v1"},
            "algorithm": {"name": "ppo"},
            "lag": {"injection": lag, "max_lag": lag},
            "budget": {"env_steps": 600},
            "storage": {"run_dir": str(folder / f"{case}-k{lag}-s{seed}")},
        }
    )
    with RunDirectory.create(config) as run:
        with RunLog(run.attempt_file, config_json=config.to_json(), provenance={}, attempt=1) as log:
            count = len(returns)
            steps = [600 // count * (place + 1) for place in range(count)]
            log.append(
                "episodes",
                TABLES["episodes"].rows(count, env_steps=steps, episode_return=returns, truncated=False),
            )
            log.append("updates", TABLES["updates"].row(update=1, env_steps=600, applied=True))
            log.append("lag", TABLES["lag"].row(update=1, lag=lag, env_steps=600))
        run.write_status("finished" if code == 0 else "stopped", exit_code=code)


@pytest.fixture
def runs(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / "runs", "ppo", 0, seed, [100.0, 100.0 + 20 * seed])
        make_run(tmp_path / "runs", "ppo", 100, seed, [100.0, 0.0 + 20 * seed])
        make_run(tmp_path / "runs", "ppo-dual", 100, seed, [50.0, 50.0])
    make_run(tmp_path / "runs", "ppo-dual", 0, 0, [60.0])
    make_run(tmp_path / "runs", "ppo-dual", 0, 1, [1.0], code=75)  # not over
    return tmp_path / "runs"


def test_a_study_is_summed_up_and_drawn_without_mpi_and_torch(runs, tmp_path):
    command = [
        sys.executable,
        "-c",
        POISON,
        str(ANALYSIS / "lag_study.py"),
        str(runs),
        "--out",
        str(tmp_path / "it"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "it.png").stat().st_size > 1000
    assert len(pd.read_csv(tmp_path / "it.csv")) == 7
    lines = (tmp_path / "it.md").read_text().splitlines()
    assert [" ".join(line.split()) for line in lines[:1] + lines[2:]] == [
        "| case | lag | seeds | mean | lowest | highest | spread | collapsed |",
        "| ppo | 0 | 2 | 105 | 100 | 110 | 10 | 0 |",
        "| ppo | 100 | 2 | 55 | 50 | 60 | 10 | 1 |",
        "| ppo-dual | 0 | 1 | 60 | 60 | 60 | 0 | 0 |",
        "| ppo-dual | 100 | 2 | 50 | 50 | 50 | 0 | 0 |",
    ]


def test_no_run_is_said(tmp_path):
    command = [sys.executable, str(ANALYSIS / "lag_study.py"), str(tmp_path), "--out", str(tmp_path / "it")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "lag_study: " in done.stderr


def test_the_study_plans_every_run_and_skips_what_is_over(tmp_path):
    spec = importlib.util.spec_from_file_location("lag_study_job", JOB)
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    options = job._parser().parse_args([str(tmp_path), "--seeds", "0", "1"])
    planned = list(job._runs(options))
    assert len(planned) == len(job.CASES) * 4 * 2
    assert {one.lag.injection for one in planned} == {0, 10, 50, 100}
    assert len({one.storage.run_dir for one in planned}) == len(planned)
    assert not job._is_over(planned[0])
    with RunDirectory.create(planned[0]) as run:
        run.write_status("finished", exit_code=0, env_steps=planned[0].budget.env_steps)
    assert job._is_over(planned[0]) and not job._is_over(planned[1])
