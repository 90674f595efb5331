"""`hpcrl watch` on runs that are not there yet, go on, are killed, resumed, finished; without a terminal."""

import io
import math
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from hpcrl.config import ConfigError
from hpcrl.live import watch as watch_module
from hpcrl.live.state import RunState
from hpcrl.live.watch import Watch, ended, watch_command
from hpcrl.storage import TABLES, RunDirectory
from hpcrl.storage.result_file import with_attempt
from tests.unit.live.support import BUDGET, begin, clock, config, episodes, open_log, updates


def screen(view, width=100):
    out = io.StringIO()
    Console(file=out, width=width).print(view)
    return out.getvalue()


@pytest.fixture
def run(tmp_path):
    directory = begin(tmp_path / "run")
    yield directory
    directory.close()


def test_a_running_run_shows_where_it_stands(run):
    log = open_log(run.path)
    log.append("events", TABLES["events"].row(kind="started", time_s=0.0))
    log.append("events", clock())
    log.append("updates", updates(1, 40))
    log.append("episodes", episodes(10, [1.0, 3.0]))
    log.append("episodes", episodes(400, [5.0]))
    hops = {"role": "actor", "role_rank": 0, "hop": ["a.b", "c.d"]}
    log.append("timers", TABLES["timers"].rows(2, seconds=[9.0, 1.0], own_s=[3.0, 1.0], **hops))
    hops = {"role": "learner", "role_rank": 0, "hop": ["e.f", "g.h"]}  # as an older file
    log.append("timers", TABLES["timers"].rows(2, seconds=[1.0, 1.0], **hops))
    log.append("metrics", TABLES["metrics"].row(update=3, name="late", value=7.25))
    log.flush()
    (run.path / "checkpoints/000000000030").mkdir()
    (run.path / "checkpoints/000000000030/manifest.json").write_text("{}")
    view = Watch(run.path).look()
    assert view.line() == (
        "running  40 %  env_steps 400  20 env_steps/s  updates 40  return 3  lag 0.5  left 0:00:30"
    )
    text = screen(view)
    for part in (
        "toy  running\n",
        f"400 of {BUDGET:,} (40.0 %), 0:00:30 left",
        "40 in 0:00:20; rows came 0 s ago",
        "20 env_steps/s over the last 0:00:20",
        "3, mean of the last 3 episodes; 2 to 5 in the curve",
        "▁",
        "0 to 2 updates, mean 0.50; lag.max_lag=1",
        "a.b 75 %, c.d 25 %",
        "e.f 50 %, g.h 50 %",
        "late 7.25",
        "update 30, 0:00:0",
        "0.0 s  started",
    ):
        assert part in text.replace(" \n", "\n"), text
    assert "clock" not in text
    assert not ended(view, stay=False)
    log.close()


def test_speed_and_lag_are_those_of_the_last_window():
    """400 updates at 20 env_steps/s with lag 2, then 30 s at 2 env_steps/s with lag 0; in one piece or many."""
    first = updates(1, 400)
    second = updates(401, 406, env_steps=[4010, 4020, 4030, 4040, 4050, 4060], lag_max=0, lag_mean=0.0)
    second["time_s"] = 200.0 + 6.0 * (second["update"] - 400)
    for cut in (1, 399, 403):
        state = RunState()
        rows = of_attempt(first, second)
        for part in (rows[:cut], rows[cut:]):
            state.take("updates", part)
        assert state.env_steps_per_s == pytest.approx(10 / 6, rel=0.2)
        assert state.lag[2] == 0 and state.lag[1] == 0.0
        assert state.left_s(4070) == pytest.approx(6, rel=0.2)
        assert state.left_s(1) == 0 and state.left_s(None) is None


def of_attempt(*parts):
    rows = np.concatenate(parts)
    made = np.zeros(len(rows), with_attempt(TABLES["updates"]))
    for name in rows.dtype.names:
        made[name] = rows[name]
    made["attempt"] = 1
    return made


def test_nothing_that_is_not_known_is_made_up(run):
    log = open_log(run.path)
    log.append("updates", updates(1, 1, lag_max=-1, lag_min=-1, lag_mean=math.nan))
    log.append("episodes", episodes(10, [math.nan]))
    log.flush()
    view = Watch(run.path).look()
    assert view.line() == "running  1 %  env_steps 10  ? env_steps/s  updates 1  return -  left ?"
    assert "none recorded" in screen(view) and "none yet" in screen(view)
    log.close()


def test_it_waits_for_a_run_follows_it_through_a_kill_and_a_resume_and_ends_with_it(tmp_path):
    path = tmp_path / "run"
    watch = Watch(path)
    view = watch.look()
    assert "not started" in view.line() and str(path) in screen(view) and not ended(view, stay=False)
    directory = begin(path)
    assert watch.look().line() == "running: no update yet"
    log = open_log(path)
    log.append("updates", updates(1, 6))
    log.append("episodes", episodes(60, [9.0], parameter_version=6))
    log.flush()
    assert watch.look().state.env_steps == 60
    log.close()
    directory.close()  # as the lock of a process that is killed
    view = watch.look()
    assert view.line().startswith("killed  6 %") and "left" not in view.line()
    assert ended(view, stay=False) and not ended(view, stay=True)
    directory = RunDirectory.resume(config(path))
    with open_log(path, attempt=2, first_update=4) as log:
        log.append("updates", updates(5, 5))
        log.flush()
        view = watch.look()
        assert (view.state.attempt, view.state.updates, view.state.env_steps) == (2, 5, 50)
        assert not view.state.returns, "that episode was lost with the first attempt"
        assert "attempt 2" in view.line() and "attempt 2" in screen(view)
        log.append("updates", updates(6, 100))
    directory.write_status("finished", exit_code=0)
    directory.close()
    view = watch.look()
    assert view.line().startswith("finished  100 %  env_steps 1,000") and ended(view, stay=True)


def test_a_result_file_that_cannot_be_read_is_trouble_not_the_end(run):
    open_log(run.path).close()
    (run.path / "attempts/002.h5").write_bytes(b"no HDF5")
    assert "002.h5 cannot be read" in screen(Watch(run.path).look(), width=300)


def test_lines_of_a_pipe_and_the_end(run, capsys, monkeypatch):
    log = open_log(run.path)
    log.append("updates", updates(1, 5))
    log.flush()
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            log.append("updates", updates(6, 100))
            log.close()
            run.write_status("finished", exit_code=0)

    clock = SimpleNamespace(sleep=pause, perf_counter=lambda: time.perf_counter() + sum(pauses))
    monkeypatch.setattr(watch_module, "time", clock)
    assert watch_command(str(run.path), 0.5, once=False, stay=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [["running", "5 %"], ["finished", "100 %"]]
    assert len(pauses) == 3 and all(0 <= seconds <= 0.5 for seconds in pauses)


def test_once_shows_one_screen_of_any_state(run, capsys):
    assert watch_command(str(run.path), 1.0, once=True, stay=False) == 0
    assert "toy  running" in capsys.readouterr().out


@pytest.mark.parametrize("once", [False, True])
def test_what_can_be_no_run_is_refused(tmp_path, once):
    (tmp_path / "other.txt").write_text("")
    for path in (tmp_path, tmp_path / "other.txt"):
        with pytest.raises(ConfigError, match="holds no run"):
            watch_command(str(path), 1.0, once=once, stay=False)
    with pytest.raises(ConfigError, match="give seconds above 0"):
        watch_command(str(tmp_path), 0.0, once=once, stay=False)


def test_once_of_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        watch_command(str(tmp_path / "no"), 1.0, once=True, stay=False)


def test_ctrl_c_ends_quietly_with_zero(run):
    open_log(run.path).close()
    command = [sys.executable, "-m", "hpcrl", "watch", str(run.path), "--every", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "running: no update yet\n"
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
