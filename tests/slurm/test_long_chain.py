"""Minutes of a real Slurm: jobs that their time limit itself ends, again and again.

Slurm's limits are whole minutes, and it looks at them every half minute.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.slurm.support import (
    CUT,
    CUT_WORKERS,
    Job,
    check_same_run,
    cut_recipe,
    later_jobs,
    site_with,
    submit,
    submit_by_hand,
    until_updates,
)
from tests.slurm.test_submitit import answers, start

pytestmark = [pytest.mark.slurm_long, pytest.mark.usefixtures("idle")]

LIMIT_S = 1200.0
LEAD_S = 1
"""Slurm sends the signal up to half a minute before that: not while ranks start."""
OF_ITSELF = CUT_WORKERS | {
    "env": CUT["env"] | {"kwargs": {"seconds_per_step": 0.03}},
    "checkpoint": {"margin_s": 15},
    "budget": {"env_steps": 30000},
}
"""Two and a half minutes of env_steps; an attempt ends by the signal, or by itself 15 s before its limit of one."""
DEAF = CUT_WORKERS | {
    "ranks": {"workers": 2},
    "env": {
        "id": "tests.slurm.deaf_envs:make",
        "engine": "custom",
        "num_envs": 6,
        "kwargs": {"seconds_per_step": 0.1},
    },
    "checkpoint": {"margin_s": 0, "every_updates": 5},
    "budget": {"env_steps": 17000},
}
"""Five minutes of steps, and nothing but SIGKILL ends its ranks, a minute or more after their start."""
NO_CLOCK = ("SLURM_JOB_END_TIME", "9999999999")
"""Else a run stops at the end of its minute, which Slurm looks at later."""
KILLED_JOBS = 10
"""More than are needed; those that are left find a run that has finished."""


def uncut(cluster, folder, recipe):
    """The summary of the same run in one piece; its env_steps take no time."""
    (folder / "whole").mkdir()
    env = recipe["env"] | {"kwargs": {"seconds_per_step": 0.0}}
    job = submit(cluster, folder / "whole", recipe=cut_recipe(folder / "whole", recipe | {"env": env}))
    assert job.until_over() == ("COMPLETED", "0:0"), job.text()
    return job.describe()


def by_submit(cluster, folder, recipe, site):
    job = submit(cluster, folder, recipe=recipe, site=site, options=["--time", "1"])
    assert job.until_over(LIMIT_S) == ("COMPLETED", "0:0"), job.text()
    return job.describe(), job.text()


def by_script(cluster, folder, recipe, site):
    job = submit_by_hand(
        cluster, folder, recipe, options=["--ntasks=3", "--time=1", f"--signal=USR1@{LEAD_S}"]
    )
    assert job.until_over(LIMIT_S) == ("COMPLETED", "0:0"), job.text()
    return job.describe(), job.text()


def by_submitit(cluster, folder, recipe, site):
    with start(cluster, folder, LIMIT_S, recipe=recipe, site=str(site), time="1") as process:
        answers(process, 1)
        (answer,) = answers(process, 1)
    assert answer["state"] == "COMPLETED", answer
    return answer["summary"], answer["output"]


@pytest.mark.parametrize("way", [by_submit, by_script, by_submitit])
def test_a_run_stops_before_its_limit_until_it_has_finished(cluster, tmp_path, way):
    """Requeued by itself, with nothing that anybody sends."""
    site = site_with(tmp_path, max_attempts=40, signal_lead_s=LEAD_S)
    summary, output = way(cluster, tmp_path, cut_recipe(tmp_path, OF_ITSELF), site)
    attempts = summary["attempts"]
    assert attempts >= 4
    assert output.count("requeueing job") == attempts - 1
    ends = [attempt["end"] for attempt in summary["attempt_list"]]
    assert ends == ["stopped"] * (attempts - 1) + ["finished"]
    check_same_run(summary, uncut(cluster, tmp_path, OF_ITSELF), attempts)


@pytest.mark.parametrize("way", ["submit", "script", "submitit"])
def test_runs_that_are_killed_at_their_limit_go_on_in_the_next_job(cluster, tmp_path, way):
    recipe, site = cut_recipe(tmp_path, DEAF), site_with(tmp_path, signal_lead_s=LEAD_S)
    site.write_text(f"{site.read_text()}\n{NO_CLOCK[0]} = '{NO_CLOCK[1]}'\n")  # in its section of variables
    if way == "submit":
        options = ["--time", "1", "--chain", str(KILLED_JOBS)]
        first = submit(cluster, tmp_path, recipe=recipe, site=site, options=options)
        jobs = [first, *later_jobs(first, KILLED_JOBS)]
    elif way == "script":
        options = ["--ntasks=2", "--time=1", f"--signal=USR1@{LEAD_S}"]
        jobs = [submit_by_hand(cluster, tmp_path, recipe, options=options, variables=dict([NO_CLOCK]))]
        for _ in range(1, KILLED_JOBS):
            after = [*options, f"--dependency=afterany:{jobs[-1].number}"]
            there = f"storage.run_dir=runs/hpcrl-{jobs[0].number}"
            jobs.append(
                submit_by_hand(cluster, tmp_path, recipe, there, options=after, variables=dict([NO_CLOCK]))
            )
    else:
        how = {"recipe": recipe, "site": str(site), "time": "1", "chain": KILLED_JOBS}
        with start(cluster, tmp_path, LIMIT_S, **how) as process:
            (said,) = answers(process, 1)
            (result,) = answers(process, 1)
        assert "summary" in result  # though the jobs that are left over are still to come
        where = (tmp_path / "no log", Path(said["run_dir"]))
        jobs = [Job(cluster, number, *where) for number in (said["id"], *said["later"])]
    assert jobs[-1].until_over(LIMIT_S) == ("COMPLETED", "0:0"), jobs[0].text()
    summary = jobs[0].describe()
    ends = [attempt["end"] for attempt in summary["attempt_list"]]
    killed = ends.count("killed")
    assert killed >= 3 and ends == ["killed"] * killed + ["finished"]
    assert {job.field("JobState") for job in jobs[:killed]} == {"TIMEOUT"}
    assert all(job.field("Restarts") == "0" for job in jobs)
    check_same_run(summary, uncut(cluster, tmp_path, DEAF), killed + 1)


def test_preempted_runs_go_on(cluster, tmp_path):
    """Slurm takes their nodes for a more urgent job, after a time of grace; one of each kind."""
    recipe = cut_recipe(tmp_path, CUT | {"budget": {"env_steps": 9000}})
    other = submit(cluster, tmp_path, recipe=recipe)
    with start(cluster, tmp_path, recipe=recipe) as process:
        (job,) = answers(process, 1)
        for run_dir in (job["run_dir"], other.run_dir):
            until_updates(run_dir, 20)
        cluster.run(
            "sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"
        )
        (answer,) = answers(process, 1)
    assert other.until_over() == ("COMPLETED", "0:0"), other.text()
    assert answer["state"] == "COMPLETED"
    for summary in (answer["summary"], other.describe()):
        assert [attempt["end"] for attempt in summary["attempt_list"]] == ["stopped", "finished"]
    restarts = [replace(other, number=number).field("Restarts") for number in (job["id"], other.number)]
    assert restarts == ["1", "1"], answer["output"] + other.text()
