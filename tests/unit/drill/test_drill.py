"""What a drill decides and sees without a run: names, outcomes, exit codes, processes, checkpoints being written."""

import json
import subprocess
import sys
import uuid
from argparse import ArgumentParser
from pathlib import Path

import pytest

from hpcrl.config import ConfigError, ExitCode, FaultsConfig
from hpcrl.config.protections import PROTECTIONS
from hpcrl.drill import exercises
from hpcrl.drill.arguments import EXERCISES, add_command, options
from hpcrl.drill.command import chosen, drill_command
from hpcrl.drill.exercises import FUNCTIONS
from hpcrl.drill.plan import Drill
from hpcrl.drill.runs import NotHeldError, NotTriedError, parent_of, processes_with, send, stop
from hpcrl.launch.recipes import load_config

TOY = {"name": "toy", "env": {"id": "chain", "engine": "toy"}, "algorithm": {"name": "impala"}}


@pytest.fixture
def drill(tmp_path, monkeypatch, capsys):
    """Run the command with exercises that only answer; gives its code, findings and what is left."""
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    (tmp_path / "job.json").write_text(json.dumps(TOY | {"storage": {"runs_dir": str(tmp_path / "runs")}}))

    def run(answers, *arguments):
        for name in EXERCISES:
            monkeypatch.setitem(FUNCTIONS, name, answers.get(name, lambda drill: "well"))
        parser = ArgumentParser()
        add_command(parser.add_subparsers())
        given = options(parser.parse_args(["drill", "--json", *arguments]))
        code = drill_command(str(tmp_path / "job.json"), (), None, given)
        return code, json.loads(capsys.readouterr().out)

    return run


def raising(error):
    def exercise(drill):
        (drill.folder / "out").write_text("of the run")
        raise error

    return exercise


def test_every_exercise_that_help_names_can_be_done():
    assert list(FUNCTIONS) == list(EXERCISES)
    assert set(PROTECTIONS) == {name for name in PROTECTIONS if not FaultsConfig(without=(name,)).has(name)}


def test_all_held(drill, tmp_path):
    code, printed = drill({})
    assert code == ExitCode.FINISHED
    assert [(one["exercise"], one["outcome"]) for one in printed["findings"]] == [
        (name, "held") for name in EXERCISES
    ]
    assert printed["kept"] is None and list((tmp_path / "runs").iterdir()) == []


def test_what_failed_decides_and_stays(drill):
    answers = {"kill": raising(NotHeldError("it lives")), "stall": raising(NotTriedError("no such rank"))}
    code, printed = drill(answers)
    assert code == ExitCode.ERROR
    outcomes = {one["exercise"]: (one["outcome"], one["detail"]) for one in printed["findings"]}
    assert outcomes["kill"] == ("failed", "it lives")
    assert outcomes["stall"] == ("not tried", "no such rank")
    assert outcomes["nan"] == ("held", "well")
    assert [path.name for path in Path(printed["kept"]).iterdir()] == ["kill"]


def test_an_interrupted_drill_did_not_hold(drill):
    code, printed = drill({"stall": raising(KeyboardInterrupt())})
    assert code == ExitCode.ERROR
    assert [one["exercise"] for one in printed["findings"]] == ["kill", "kill-save"]


def test_what_was_not_tried_did_not_fail(drill):
    assert drill({"stall": raising(NotTriedError("no such rank"))})[0] == ExitCode.FINISHED


def test_runs_are_drilled_without_what_is_switched_off(drill):
    seen = []
    answers = {"nan": lambda drill: seen.append(drill.config.faults.without) or "well"}
    _, printed = drill(answers, "--only", "nan", "--without", "watchdog", "--without", "ownership")
    assert seen == [("ownership", "watchdog")] and printed["without"] == ["ownership", "watchdog"]
    assert [one["exercise"] for one in printed["findings"]] == ["nan"]


def test_a_drill_is_no_rank(drill, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(ConfigError, match="start it once"):
        drill({})


def test_names_come_in_order_and_once():
    assert chosen("--only", ["nan", "kill", "nan"], EXERCISES) == ["kill", "nan"]
    with pytest.raises(ConfigError, match=r"--only kil: .* kill, "):
        chosen("--only", ["kil"], EXERCISES)


@pytest.mark.parametrize(
    ("files", "torn"),
    [
        (["000000000002/manifest.json"], False),
        ([".tmp-old-000000000002-77/learner-0.h5"], False),
        (["damaged-000000000002-1/learner-0.h5"], False),
        ([".tmp-000000000004/learner-0.h5"], True),
        ([".tmp-000000000004/manifest.json"], True),
        (["000000000002/manifest.json", "000000000004/learner-0.h5"], True),
    ],
)
def test_a_checkpoint_that_is_being_written(tmp_path, files, torn):
    for name in files:
        path = tmp_path / "checkpoints" / name
        path.parent.mkdir(parents=True)
        path.touch()
    assert exercises._being_written(tmp_path) is torn


def test_processes_are_found_stopped_and_continued():
    token = f"a-token-of-this-test-{uuid.uuid4().hex}"
    program = [sys.executable, "-c", "print('begun', flush=True); input()"]
    with subprocess.Popen(
        program, env={"SOME": token}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "begun\n"
        found = processes_with(token)
        stop(process.pid)
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        send(process.pid, 18)
        parent = parent_of(process.pid)
        process.communicate("go on\n", timeout=10)
    assert list(found) == [process.pid] and "input()" in found[process.pid]
    assert (state, parent, process.returncode) == ("T", __import__("os").getpid(), 0)
    assert processes_with(token) == {}
    send(process.pid, 18)  # nobody is there


@pytest.mark.parametrize(("changes", "expected"), [({}, 20 * 8), ({"num_envs": 6}, 20 * 6)])
def test_env_steps_of_an_update(tmp_path, changes, expected):
    values = TOY | {
        "env": TOY["env"] | {"num_envs": 8} | changes,
        "algorithm": {"name": "impala", "unroll_length": 20},
        "ranks": {"actors": 2},
    }
    (tmp_path / "job.json").write_text(json.dumps(values))
    config = load_config(str(tmp_path / "job.json"))
    assert Drill(config, None, tmp_path, 5.0, 10.0).update_env_steps == expected
