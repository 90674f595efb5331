"""How the end of a Slurm job is seen from outside; `sacct` is a stand-in that tells one state after the other."""

import os

import pytest
import submitit

from hpcrl.launch import submitted
from hpcrl.launch.submitted import RunFailedError, SubmittedRun

SACCT = """\
#!/bin/sh
echo asked >> {folder}/asked
echo 'JobID|State|NodeList'
echo "7|$(sed -n "$(wc -l < {folder}/asked)p" {folder}/states)|n1"
"""


@pytest.fixture
def run_with(tmp_path, monkeypatch):
    def make(*states):
        (tmp_path / "states").write_text("\n".join([*states, *[states[-1]] * 9]))
        (tmp_path / "sacct").write_text(SACCT.format(folder=tmp_path))
        (tmp_path / "sacct").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(submitted, "LOOK_EVERY_S", 0.01)
        submitit.SlurmJob.watcher.clear()
        return SubmittedRun(submitit.SlurmJob(folder=tmp_path, job_id="7", tasks=range(2)), tmp_path / "run")

    return make


@pytest.mark.parametrize(
    ("states", "looks"),
    [
        (("PENDING", "RUNNING", "FAILED"), 4),
        (("NODE_FAIL", "PENDING", "RUNNING", "CANCELLED by 0"), 5),
        (("PREEMPTED",), 2),
    ],
    ids=["failed", "looks ended before Slurm starts it again", "preempted for good"],
)
def test_a_job_is_over_when_that_was_seen_twice(run_with, tmp_path, states, looks):
    with pytest.raises(RunFailedError, match=rf"the job, which is {states[-1]}, ended before its run began"):
        run_with(*states).result()
    for_the_message = 1
    assert (tmp_path / "asked").read_text().count("asked") == looks + for_the_message


def test_the_state_is_asked_for_each_time(run_with):
    run = run_with("COMPLETED", "PENDING", "RUNNING")
    assert [run.state() for _ in range(3)] == ["COMPLETED", "PENDING", "RUNNING"]
