import os
from datetime import datetime

import pytest

from hpcrl.launch.allocation import allocation_end, end_time

ANSWER = """\
JobId=7 JobName=train
   SubmitTime=2026-03-01T10:00:00 EligibleTime=2026-03-01T10:00:00
   StartTime=2026-03-01T10:00:05 EndTime=2026-03-01T12:30:05 Deadline=N/A
"""


def test_the_end_is_local_time():
    assert end_time(ANSWER) == datetime(2026, 3, 1, 12, 30, 5).timestamp()


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error", "StartTime=x EndTime=Unknown Deadline=N/A"])
def test_an_unknown_end_is_none(text):
    assert end_time(text) is None


def test_outside_a_job_nobody_is_asked():
    assert allocation_end({}) is None


def test_slurm_may_have_said_it_already():
    assert allocation_end({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000000"}) == 1700000000.0


@pytest.mark.parametrize(("script", "end"), [(f"cat <<'E'\n{ANSWER}E\n", end_time(ANSWER)), ("exit 1", None)])
def test_else_scontrol_is_asked(tmp_path, script, end):
    command = tmp_path / "scontrol"
    command.write_text(f'#!/bin/sh\n[ "$*" = "show job 7" ] || exit 2\n{script}')
    command.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert allocation_end({"SLURM_JOB_ID": "7", "PATH": path}) == end


def test_of_an_array_the_one_task_is_asked_for(tmp_path):
    """For the number of the array, which is also the number of one task, scontrol shows all of them."""
    command = tmp_path / "scontrol"
    command.write_text(f"#!/bin/sh\n[ \"$*\" = 'show job 7_4' ] || exit 2\ncat <<'E'\n{ANSWER}E\n")
    command.chmod(0o755)
    task = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "4"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert allocation_end(task | {"PATH": path}) == end_time(ANSWER)


def test_without_scontrol_the_end_is_unknown(tmp_path):
    assert allocation_end({"SLURM_JOB_ID": "7", "PATH": str(tmp_path)}) is None
