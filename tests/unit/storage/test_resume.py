import json
import os
from datetime import UTC, datetime

import pytest

from hpcrl.config import ConfigError, RunConfig
from hpcrl.storage import RunDirectory, checkpoint, read_status
from hpcrl.storage.resume import check_start, differences, finished, open_run


def config(path, **sections):
    values = {
        "name": "toy",
        "seed": 3,
        "env": {"id": "CartPole-v1"},
        "algorithm": {"name": "ppo"},
        "storage": {"run_dir": None if path is None else str(path)},
    }
    return RunConfig.parse(values | sections)


def begin(path, *updates, status="stopped", **progress):
    """A run that ended in its first attempt with these checkpoints."""
    with RunDirectory.create(config(path)) as run:
        run.attempt_file.write_bytes(b"")
        for update in updates:
            found = checkpoint.write_part(path, update, "learner-0", {"counters": {"updates": update}})
            checkpoint.complete(path, update, {"learner-0": found}, meta={"env_steps": 10 * update})
        run.write_status(status, exit_code=75, **progress)


def test_never_is_as_without(tmp_path):
    start = open_run(config(tmp_path / "run"), "never")
    start.directory.close()
    assert start.directory.attempt == 1 and start.saved is None and start.notes == ()
    with pytest.raises(ConfigError, match=r"already holds a run .*--resume must"):
        check_start(config(tmp_path / "run"), "never")


@pytest.mark.parametrize("mode", ["if-exists", "must"])
def test_the_newest_set_is_found_and_the_attempt_rises(tmp_path, mode):
    begin(tmp_path, 4, 8)
    changed = config(tmp_path, budget={"env_steps": 77})
    check_start(changed, mode)
    start = open_run(changed, mode)
    with start.directory as run:
        assert run.attempt == 2 and run.attempt_file.name == "002.h5"
        assert start.saved is not None and start.saved.update == 8
        assert start.notes[0] == "budget.env_steps: 1000000 -> 77"
        assert start.notes[1].startswith("resumed at update 8 from ")
        assert read_status(run.path)["status"] == "running"
        assert json.loads((tmp_path / "config.json").read_text())["budget"]["env_steps"] == 77


def test_where_there_is_nothing_one_begins_and_one_refuses(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"--resume must: storage.run_dir=.* holds no run"):
        check_start(config(path), "must")
    with pytest.raises(ConfigError, match=r"give its directory as RECIPE, or set storage.run_dir"):
        check_start(config(None), "if-exists")
    check_start(config(path), "if-exists")
    assert not path.exists()
    start = open_run(config(path), "if-exists")
    start.directory.close()
    assert start.directory.attempt == 1


def test_a_run_without_a_set_begins_again_or_is_refused(tmp_path):
    begin(tmp_path)
    with pytest.raises(ConfigError, match=r"no checkpoint in .*--resume if-exists would begin again"):
        open_run(config(tmp_path), "must")
    start = open_run(config(tmp_path), "if-exists")
    start.directory.close()
    assert start.saved is None and start.directory.attempt == 2
    assert start.notes == ("no checkpoint yet: the run begins again at update 0",)


def test_a_damaged_set_is_passed_over_and_put_aside(tmp_path, caplog):
    begin(tmp_path, 4, 8)
    (tmp_path / "checkpoints/000000000008/learner-0.h5").write_bytes(b"x")
    start = open_run(config(tmp_path), "must")
    start.directory.close()
    assert start.saved is not None and start.saved.update == 4
    assert "checkpoint damaged-000000000008-1, which is damaged, was put aside" in start.notes
    assert "000000000008/learner-0.h5 does not match the hash" in caplog.text


def test_when_all_are_damaged_nothing_is_begun_over_them(tmp_path):
    begin(tmp_path, 4)
    (tmp_path / "checkpoints/000000000004/learner-0.h5").write_bytes(b"x")
    for mode in ("must", "if-exists"):
        with pytest.raises(ConfigError, match=r"is damaged: .*move the folder away to begin again"):
            open_run(config(tmp_path), mode)


FIXED = {
    "seed": 4,
    "scheme": "synchronous",
    "env": {"id": "CartPole-v1", "num_envs": 9},
    "model": {"hidden_sizes": [3]},
    "algorithm": {"name": "impala"},
}
FREE = {
    "budget": {"env_steps": 5},
    "ranks": {"actors": 2},
    "checkpoint": {"keep": 5},
    "comm": {"slots": 3},
    "evaluation": {"episodes": 1},
    "log": {"level": "debug"},
    "lag": {"max_lag": 3},
    "algorithm": {"name": "ppo", "learning_rate": 1e-5},
    "env": {"id": "CartPole-v1", "num_groups": 2, "num_threads": 3, "vectorization": "async"},
}


@pytest.mark.parametrize("key", FIXED)
def test_what_makes_the_run_cannot_change_and_the_difference_is_shown(tmp_path, key):
    begin(tmp_path, 4)
    changed = config(tmp_path, **{key: FIXED[key]})
    for refuse in (lambda: check_start(changed, "must"), lambda: open_run(changed, "must")):
        with pytest.raises(ConfigError, match=rf"cannot be resumed with another (.|\n)*  {key}.*: .* -> "):
            refuse()
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 3


def test_returns_that_were_not_counted_from_the_start_are_not_normalized_by(tmp_path):
    begin(tmp_path, 4)
    changed = config(tmp_path, algorithm={"name": "ppo", "normalize_returns": True})
    with pytest.raises(ConfigError, match=r"  algorithm\.normalize_returns: False -> True"):
        check_start(changed, "must")


def test_a_queue_of_late_batches_cannot_change_its_length(tmp_path):
    late = {"scheme": "synchronous", "lag": {"injection": 2, "max_lag": 3}}
    open_run(config(tmp_path, **late), "never").directory.close()
    with pytest.raises(ConfigError, match=r"lag\.injection: 2 -> 3"):
        check_start(config(tmp_path, scheme="synchronous", lag={"injection": 3, "max_lag": 3}), "must")


def test_keys_that_the_first_attempt_did_not_have_count_with_their_default(tmp_path):
    begin(tmp_path, 4)
    values = json.loads((tmp_path / "config.json").read_text())
    del values["lag"]["injection"], values["model"]["activation"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    check_start(config(tmp_path), "must")
    with pytest.raises(ConfigError, match="activation"):
        check_start(config(tmp_path, model={"activation": "relu"}), "must")


@pytest.mark.parametrize("key", FREE)
def test_the_rest_can_change_and_is_noted(tmp_path, key):
    begin(tmp_path, 4)
    changed = config(tmp_path, **{key: FREE[key]})
    check_start(changed, "must")
    start = open_run(changed, "must")
    start.directory.close()
    assert start.notes[0].startswith(f"{key}.") and " -> " in start.notes[0]


def test_differences_are_found_at_any_depth():
    old = {"a": 1, "b": {"c": [1], "d": {"e": 2}}, "gone": 3}
    new = {"a": 1, "b": {"c": [2], "d": {"e": 2}}, "come": 4}
    assert differences(old, new) == [("b.c", [1], [2]), ("gone", 3, None), ("come", None, 4)]


def test_a_run_whose_writer_lives_is_refused(tmp_path):
    with RunDirectory.create(config(tmp_path)) as run:
        for refuse in (check_start, open_run):
            with pytest.raises(ConfigError, match=f"is being written by process {os.getpid()} on host "):
                refuse(config(tmp_path), "must")
        assert run.attempt == 1


@pytest.mark.parametrize("grows", [True, False])
def test_a_run_on_another_host_is_waited_for_and_refused_if_its_file_grows(tmp_path, monkeypatch, grows):
    begin(tmp_path, 4)
    values = json.loads((tmp_path / "status.json").read_text()) | {"status": "running", "host": "far-away"}
    (tmp_path / "status.json").write_text(json.dumps(values))
    result = tmp_path / "attempts/001.h5"
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if grows:
            os.utime(result)
        else:
            monkeypatch.setattr("hpcrl.storage.ownership._LIVE_S", 0.0)  # the minute has passed

    monkeypatch.setattr("hpcrl.storage.ownership.time.sleep", sleep)
    os.utime(result, (time := datetime.now(UTC).timestamp() - 5, time))
    if grows:
        with pytest.raises(ConfigError, match=r"is being written by process \d+ on host far-away"):
            check_start(config(tmp_path), "must")
    else:
        check_start(config(tmp_path), "must")
    assert slept == [1.0]


def test_a_failure_of_an_earlier_attempt_does_not_stick(tmp_path):
    begin(tmp_path, 4, status="failed")
    with open_run(config(tmp_path), "must").directory as run:
        assert read_status(tmp_path)["status"] == "running"
        values = json.loads((tmp_path / "status.json").read_text())
        (tmp_path / "status.json").write_text(json.dumps(values | {"status": "failed"}))
        run.write_status("running")  # in this attempt it does
        assert read_status(tmp_path)["status"] == "failed"


def test_a_finished_run_says_so_unless_the_budget_was_raised(tmp_path):
    begin(tmp_path, 4, status="finished", env_steps=1_000_000)
    said = f"{tmp_path} has finished: 1,000,000 env_steps of a budget of 1,000,000; raise budget.env_steps to go on"
    assert finished(config(tmp_path), "must") == finished(config(tmp_path), "if-exists") == said
    assert finished(config(tmp_path), "never") == ""
    with pytest.raises(ConfigError, match="  seed: 3 -> 4"):
        finished(config(tmp_path, seed=4), "must")
    assert finished(config(tmp_path, budget={"env_steps": 1_000_001}), "must") == ""
    begin(tmp_path / "stopped", 4, env_steps=1_000_000)
    assert finished(config(tmp_path / "stopped"), "must") == ""
