"""The cause that a supervisor notes stays, whatever the writer says while it is still alive."""

from hpcrl.config import RunConfig
from hpcrl.storage import RunDirectory, read_status
from hpcrl.storage.rundir import mark_failed


def create(folder):
    values = {"name": "toy", "env": {"id": "counting"}, "algorithm": {"name": "ppo"}}
    return RunDirectory.create(RunConfig.parse(values | {"storage": {"runs_dir": str(folder)}}))


def test_the_first_cause_stays(tmp_path):
    with create(tmp_path) as run:
        mark_failed(run.path, 3, "actor 1 was killed")
        mark_failed(run.path, 3, "learner 0 was killed")
    status = read_status(run.path)
    assert (status["status"], status["exit_code"], status["cause"]) == ("failed", 3, "actor 1 was killed")


def test_a_writer_that_does_not_know_yet_does_not_say_running(tmp_path):
    with create(tmp_path) as run:
        mark_failed(run.path, 3, "actor 1 was killed")
        run.write_status("running", updates=7)
        assert read_status(run.path)["cause"] == "actor 1 was killed"
        run.write_status("failed", exit_code=4, cause="not finite")
        assert read_status(run.path)["exit_code"] == 4


def test_a_run_that_ended_is_left_alone(tmp_path):
    with create(tmp_path) as run:
        run.write_status("finished", exit_code=0)
        mark_failed(run.path, 3, "a rank died at the very end")
    assert read_status(run.path)["status"] == "finished"


def test_progress_is_kept(tmp_path):
    with create(tmp_path) as run:
        run.write_status("running", updates=7)
        mark_failed(run.path, 3, "actor 1 was killed")
    assert read_status(run.path)["updates"] == 7
