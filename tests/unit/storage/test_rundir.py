import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcrl.config import ConfigError, RunConfig
from hpcrl.storage import RunDirectory, check_free, read_status
from hpcrl.storage.rundir import mark_failed, status_damage

HOLDER = """
import sys, time
from hpcrl.config import RunConfig
from hpcrl.storage import RunDirectory
run = RunDirectory.create(RunConfig.parse(__import__("json").loads(sys.argv[1])))
if sys.argv[2:]:
    run.write_status(sys.argv[2], exit_code=75, cause="by hand")
print(run.path, flush=True)
time.sleep(60)
"""


def config(**storage):
    return RunConfig.parse(
        {
            "name": "toy",
            "seed": 3,
            "env": {"id": "CartPole-v1"},
            "algorithm": {"name": "ppo"},
            "storage": storage,
        }
    )


def start_holder(settings, *status):
    command = [sys.executable, "-c", HOLDER, settings.to_json(), *status]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_directory_is_made_with_everything_in_it(tmp_path):
    settings = config(runs_dir=str(tmp_path / "deep/runs"))
    with RunDirectory.create(settings) as run:
        assert run.path == tmp_path / "deep/runs/toy-3-001"
        assert run.attempt == 1
        assert run.attempt_file == run.path / "attempts/001.h5"
        assert run.logs.is_dir() and (run.path / "checkpoints").is_dir() and (run.path / "attempts").is_dir()
        assert RunConfig.parse(json.loads((run.path / "config.json").read_text())) == settings
        run.write_provenance({"a": 1})
        assert json.loads((run.path / "provenance.json").read_text()) == {"a": 1}


def test_numbers_go_on_after_the_highest_and_ignore_other_names(tmp_path):
    for name in ("toy-3-007", "toy-3-x", "toy-33-020", "other-3-050", "toy-3-002"):
        (tmp_path / name).mkdir()
    assert RunDirectory.create(config(runs_dir=str(tmp_path))).path.name == "toy-3-008"
    (tmp_path / "toy-3-999").mkdir()
    assert RunDirectory.create(config(runs_dir=str(tmp_path))).path.name == "toy-3-1000"


def test_a_number_that_another_job_took_a_moment_ago_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "toy-3-001").mkdir()
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(()))  # looked before the other job made it
    assert RunDirectory.create(config(runs_dir=str(tmp_path))).path.name == "toy-3-002"


def test_jobs_that_start_at_once_get_different_directories(tmp_path):
    code = HOLDER.replace("time.sleep(60)", "")
    command = [sys.executable, "-c", code, config(runs_dir=str(tmp_path)).to_json()]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    paths = [process.communicate()[0].strip() for process in processes]
    assert sorted(Path(path).name for path in paths) == [f"toy-3-{number:03d}" for number in range(1, 5)]


def test_checking_makes_nothing(tmp_path):
    check_free(config(runs_dir=str(tmp_path / "a/runs")))
    check_free(config(run_dir=str(tmp_path / "b/run")))
    assert list(tmp_path.iterdir()) == []


def test_a_given_directory_is_used_but_not_twice(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.sbatch").write_text("")
    settings = config(run_dir=str(tmp_path / "run"))
    with RunDirectory.create(settings) as run:
        assert run.path == tmp_path / "run"
    before = (run.path / "config.json").read_text()
    for refuse in (check_free, RunDirectory.create):
        with pytest.raises(ConfigError, match=r"already holds a run .*name a new folder"):
            refuse(settings)
    assert (run.path / "config.json").read_text() == before


def test_a_second_writer_is_refused_with_the_name_of_the_owner(tmp_path):
    settings = config(run_dir=str(tmp_path / "run"))
    process, path = start_holder(settings)
    try:
        (path / "config.json").unlink()  # nothing but the lock protects it now
        for refuse in (check_free, RunDirectory.create):
            with pytest.raises(ConfigError, match=f"being written by process {process.pid} on host "):
                refuse(settings)
        assert not (path / "config.json").exists()
    finally:
        kill(process)
    RunDirectory.create(settings).close()


def test_without_ownership_a_second_writer_is_let_in(tmp_path):
    settings = config(run_dir=str(tmp_path))
    alone = settings.with_overrides(['faults.without=["ownership"]'])
    with RunDirectory.create(settings):
        with pytest.raises(ConfigError, match="being written by"):
            RunDirectory.resume(settings)
        with RunDirectory.resume(alone) as second:
            assert second.path == tmp_path


def test_the_lock_itself_refuses_when_two_passed_the_check_together(tmp_path, monkeypatch):
    settings = config(run_dir=str(tmp_path))
    monkeypatch.setattr("hpcrl.storage.rundir.check_free", lambda config: None)
    with (
        RunDirectory.create(settings),
        pytest.raises(ConfigError, match=f"being written by process {os.getpid()}"),
    ):
        RunDirectory.create(settings)
    with pytest.raises(ConfigError, match="already holds a run"):
        RunDirectory.create(settings)


def test_places_that_cannot_be_used_are_refused_with_the_key(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=r"storage.run_dir=.* is a file; name a folder"):
        check_free(config(run_dir=str(file)))
    with pytest.raises(ConfigError, match=r"storage.runs_dir=.*cannot be written"):
        check_free(config(runs_dir=str(file / "runs")))


def test_status_is_running_while_the_writer_lives_and_killed_after_a_kill(tmp_path):
    process, path = start_holder(config(runs_dir=str(tmp_path)))
    status = read_status(path)
    assert status["status"] == "running"
    assert status["pid"] == process.pid and status["attempt"] == 1 and status["exit_code"] is None
    kill(process)
    status = read_status(path)
    assert status["status"] == "killed"
    assert status["cause"] == "its process ended without saying why"
    assert json.loads((path / "status.json").read_text())["status"] == "running"  # readers change nothing


def test_a_status_that_was_written_outlives_its_writer(tmp_path):
    process, path = start_holder(config(runs_dir=str(tmp_path)), "stopped")
    kill(process)
    assert read_status(path)["status"] == "stopped"
    assert read_status(path)["cause"] == "by hand"


def test_status_keeps_what_it_is_given_and_finished_is_never_implied(tmp_path):
    with RunDirectory.create(config(runs_dir=str(tmp_path))) as run:
        run.write_status("running", env_steps=10, env_steps_per_s=2.5)
        assert read_status(run.path)["env_steps"] == 10
    assert read_status(run.path)["status"] == "killed"  # closed without a word
    run.write_status("finished", exit_code=0, env_steps=20)
    assert {"status": "finished", "exit_code": 0, "env_steps": 20}.items() <= read_status(run.path).items()


@pytest.mark.parametrize("text", [None, "", "{", "[1]"])
def test_a_missing_or_torn_status_is_not_started(tmp_path, text):
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    assert read_status(tmp_path)["status"] == "not started"


def test_a_status_that_somebody_changed_is_seen(tmp_path):
    assert status_damage(tmp_path) == "is missing or cannot be read"
    path = tmp_path / "status.json"
    with RunDirectory.create(config(run_dir=str(tmp_path))) as run:
        run.write_status("stopped", exit_code=75, env_steps=10, env_steps_per_s=float("nan"))
    whole = path.read_text()
    assert status_damage(tmp_path) == ""
    for old, new in (("stopped", "running"), ('"env_steps": 10', '"env_steps": 11'), ("sha256", "sha255")):
        path.write_text(whole.replace(old, new))
        assert status_damage(tmp_path) == "does not match its own hash"
    path.write_text('{"status": "running", "pid": 1}')  # of before there was a hash
    assert status_damage(tmp_path) == ""
    mark_failed(tmp_path, 3, "actor 0 was killed")
    assert status_damage(tmp_path) == "" and read_status(tmp_path)["status"] == "failed"


def test_readers_of_the_status_do_not_keep_a_writer_out(tmp_path, monkeypatch):
    (tmp_path / "lock").write_text("")
    monkeypatch.setattr("hpcrl.storage.rundir.check_free", lambda config: None)
    with (tmp_path / "lock").open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)  # as read_status does, for an instant
        threading.Timer(0.05, fcntl.flock, (reader, fcntl.LOCK_UN)).start()
        RunDirectory.create(config(run_dir=str(tmp_path))).close()


def test_a_run_on_another_host_is_alive_while_its_result_file_grows(tmp_path):
    (tmp_path / "attempts").mkdir()
    (tmp_path / "status.json").write_text('{"status": "running", "host": "far-away"}')
    result = tmp_path / "attempts/001.h5"
    result.write_bytes(b"")
    assert read_status(tmp_path)["status"] == "running"
    os.utime(result, (1, 1))
    assert read_status(tmp_path)["status"] == "killed"
