"""`hpcrl diagnose` on run directories that the storage layer wrote."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from hpcrl.config import ConfigError, RunConfig
from hpcrl.diagnose.command import diagnose_command, render
from hpcrl.diagnose.verdict import diagnose
from hpcrl.storage import TABLES, RunDirectory, RunLog
from tests.unit.diagnose.support import events, make_config, seats, timers, updates

OWN = {
    ("actor", 0): {"env.recv": 8.0, "grant.wait": 1.0},
    ("replay", 0): {"replay.insert": 1.0},
    ("learner", 0): {"algorithm.update": 3.0, "batch.wait": 7.0},
}


def plain(rows, table):
    """Without the column `attempt`, as a writer has them."""
    return np.array(rows[list(TABLES[table].dtype.names)], TABLES[table].dtype)


def write(log, **tables):
    for name, rows in tables.items():
        log.append(name, plain(rows, name))


@pytest.fixture
def run(tmp_path):
    config = RunConfig.parse(make_config(storage={"runs_dir": str(tmp_path)}))
    with RunDirectory.create(config) as directory:
        yield directory


def open_log(run, attempt=1):
    path = run.path / f"attempts/{attempt:03d}.h5"
    return RunLog(path, config_json="{}", provenance={}, attempt=attempt, first_update=100 * (attempt - 1))


def finish(run, **tables):
    with open_log(run) as log:
        write(log, updates=updates(), timers=timers(OWN), ranks=seats("replay", "actor", "learner"), **tables)
    run.write_status("finished", exit_code=0)


def test_a_clean_run_ends_with_0_and_its_bottleneck(run, capsys):
    finish(run)
    assert diagnose_command(str(run.path), as_json=False) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "nothing is wrong" in screen
    assert "environment: env.recv of actor 0" in screen and "faster by: ranks.actors=2" in screen
    assert "cannot tell reset_steps: 0 episodes have ended; 50 are needed" in screen


def test_findings_end_with_1_worst_first(run, capsys):
    finish(run, events=events("disk_refuses", text="No space left"), lag=np.zeros(0, TABLES["lag"].dtype))
    assert diagnose_command(str(run.path), as_json=False) == 1
    screen = " ".join(capsys.readouterr().out.split())
    assert "costly the disk refused the result file 1 times: No space left" in screen


def test_for_programs(run, capsys):
    finish(run, events=events("disk_refuses", text="No space left"))
    assert diagnose_command(str(run.path), as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["status"], said["attempt"], said["updates"]) == ("finished", 1, 100)
    narrow = said["bottleneck"]
    assert (narrow["part"], narrow["hop"], narrow["rank"]) == ("environment", "env.recv", "actor 0")
    assert narrow["change"] | {"text": ""} == {"text": "", "key": "ranks.actors", "value": 2}
    assert [(one["rule"], one["severity"]) for one in said["findings"]] == [("disk", "costly")]
    assert "reset_steps" in said["unknown"]


def test_a_run_that_goes_on_is_diagnosed_by_what_is_written(run):
    with open_log(run) as log:
        write(log, updates=updates(30), timers=timers(OWN), ranks=seats("replay", "actor", "learner"))
        log.flush()
        found = diagnose(run.path)
        assert found.view.status["status"] == "running" and len(found.view["updates"]) == 30
        assert found.bottleneck.hop == "env.recv" and found.findings == []


def test_a_killed_run_says_so_beside_its_bottleneck(run):
    with open_log(run) as log:
        write(log, updates=updates(), timers=timers(OWN), ranks=seats("replay", "actor", "learner"))
    run.close()
    found = diagnose(run.path)
    assert [rule.name for rule, _ in found.findings] == ["ended"]
    assert found.bottleneck.hop == "env.recv"


def test_the_last_attempt_that_trained_is_looked_at(run):
    finish(run, events=events("disk_refuses", text="No space left"))
    with open_log(run, 2) as log:
        write(log, updates=updates(40, update=100 + np.arange(40) + 1))
    open_log(run, 3).close()
    found = diagnose(run.path)
    assert (found.view.attempt, len(found.view["updates"]), found.findings) == (2, 40, [])
    assert found.view.initial["update"].tolist() == [1, 2, 3]  # of the run, not of the attempt


def test_a_run_without_its_configuration_is_diagnosed(run):
    finish(run, events=events("disk_refuses", text="No space left"))
    (run.path / "config.json").unlink()
    found = diagnose(run.path)
    assert found.bottleneck.hop == "env.recv" and [rule.name for rule, _ in found.findings] == ["disk"]
    console = Console(file=io.StringIO(), width=100)
    console.print(render(found))
    assert str(run.path.name) in console.file.getvalue()


def test_a_damaged_file_is_found(run):
    finish(run)
    with (run.path / "attempts/001.h5").open("r+b") as file:
        file.write(b"x" * 16)
    found = diagnose(run.path)
    ((rule, finding),) = found.findings
    assert rule.name == "damaged" and "001.h5 cannot be read" in finding.what


def test_a_run_that_has_not_begun_has_nothing_to_tell(run):
    found = diagnose(run.path)
    assert found.findings == [] and found.bottleneck is None and "bottleneck" in found.unknown


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        diagnose_command(str(tmp_path), as_json=True)
