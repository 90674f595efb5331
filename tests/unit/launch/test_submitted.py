"""How the end of a Slurm job is seen from outside; `sacct` is a stand-in that tells one state after the other."""

import os

import pytest
import submitit
from submitit.core.utils import UncompletedJobError

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


class Ended:
    """A local job that is over."""

    def __init__(self, code=None):
        self.code, self.state = code, "DONE" if code == 0 else "FAILED"

    def results(self):
        if self.code is None:
            raise UncompletedJobError("no result")
        return [self.code]

    def stdout(self):
        return f"{self.code}\n"

    stderr = stdout


@pytest.mark.parametrize("codes", [(0,), (None, 0, 0), (3, None, 0)])
def test_of_a_chain_one_job_that_finishes_is_enough(codes, tmp_path, monkeypatch):
    monkeypatch.setattr(submitted, "describe", lambda path: {"run_dir": path})
    first, *later = map(Ended, codes)
    run = SubmittedRun(first, tmp_path, tuple(later))
    assert run.result() == {"run_dir": tmp_path}
    assert run.logs()[0] == "".join(f"{code}\n" for code in codes)


def test_a_chain_of_which_no_job_has_finished_tells_of_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(submitted, "describe", lambda path: {"exit_code": 3, "cause": "a rank died"})
    with pytest.raises(RunFailedError, match="ended with exit code 75: a rank died"):
        SubmittedRun(Ended(3), tmp_path, (Ended(), Ended(75))).result()


def test_the_state_of_a_chain_is_that_of_the_job_whose_turn_it_is(run_with, tmp_path):
    first = run_with("TIMEOUT").job
    over, waiting = Ended(), Ended()
    over.state, waiting.state = "TIMEOUT", "PENDING"
    assert SubmittedRun(first, tmp_path, (over, waiting)).state() == "PENDING"
    over.state = "RUNNING"
    assert SubmittedRun(first, tmp_path, (over, waiting)).state() == "RUNNING"


def test_a_chain_is_cancelled_from_its_end(tmp_path):
    """The other way round the end of one job would start the next."""
    order = []
    jobs = [Ended() for _ in range(3)]
    for number, job in enumerate(jobs):
        job.cancel = lambda number=number: order.append(number)
    SubmittedRun(jobs[0], tmp_path, tuple(jobs[1:])).cancel()
    assert order == [2, 1, 0]
