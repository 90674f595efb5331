"""`hpcrl export`: what TensorBoard, pandas and wandb read is what the run's tables hold."""

import math
import sys

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpcrl.config import ConfigError
from hpcrl.live import export as export_module
from hpcrl.live.export import Export, Wanted, export_command
from hpcrl.storage import TABLES, read_table
from hpcrl.storage.merge import merge
from tests.unit.live.support import BEGAN_S, begin, clock, episodes, open_log, updates


def read_back(folder):
    """Series -> [(wall time, step, value)] by TensorBoard's own reader."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {
        tag: [(one.wall_time, one.step, one.value) for one in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def fill(log, first=1, last=20):
    log.append("events", clock())
    log.append("updates", updates(first, last))


@pytest.fixture
def run(tmp_path):
    directory = begin(tmp_path / "run")
    yield directory.path
    directory.close()


def evaluation(update, returns):
    return TABLES["evaluation"].rows(
        len(returns),
        update=update,
        env_steps=10 * update,
        seed=1,
        episode=np.arange(len(returns)),
        episode_return=returns,
        episode_length=7,
        cut=False,
    )


def test_every_metric_of_every_table_at_its_env_steps_and_time(run, tmp_path):
    with open_log(run) as log:
        fill(log)
        log.append("episodes", episodes(0, [100.0], time_s=0.25))
        log.append("episodes", episodes(10, [1.0, 2.0, 6.0], time_s=[0.6, 0.7, 0.8]))
        log.append("episodes", episodes(200, [8.0], time_s=9.0))
        log.append("evaluation", evaluation(12, [1.0, 4.0]))
        log.append(
            "metrics", TABLES["metrics"].rows(2, update=[19, 20], name=["late", "ü"], value=[0.5, 7.0])
        )
    assert export_command(str(run), Wanted(tensorboard=str(tmp_path / "tb")), None) == 0
    found = read_back(tmp_path / "tb/run")
    assert found["updates/policy_loss"] == [(BEGAN_S + 0.5 * u, 10 * u, u / 8) for u in range(1, 21)]
    assert [value for *_, value in found["updates/lag_max"]] == [2.0] * 20
    assert [value for *_, value in found["updates/applied"]] == [1.0] * 20
    assert "updates/entropy" not in found, "it has no value in any update"
    assert not {f"updates/{name}" for name in ("update", "env_steps", "time_s", "rows_checksum")} & set(found)
    assert found["episodes/return"] == [
        (BEGAN_S + 0.25, 0, 100.0),
        (BEGAN_S + np.float64(0.8), 10, 3.0),
        (BEGAN_S + 9, 200, 8.0),
    ]
    assert [value for *_, value in found["episodes/length"]] == [5.0] * 3
    assert found["evaluation/return"] == [(BEGAN_S + 6, 120, 2.5)]
    assert found["evaluation/length"] == [(BEGAN_S + 6, 120, 7.0)]
    assert found["metrics/late"] == [(BEGAN_S + 9.5, 190, 0.5)]
    assert found["metrics/ü"] == [(BEGAN_S + 10, 200, 7.0)]


def test_what_is_missing_makes_no_point(run, tmp_path):
    with open_log(run) as log:
        log.append("updates", updates(1, 3, policy_loss=[1.0, math.nan, 3.0], lag_max=[-1, 0, 1]))
        log.append("episodes", episodes(20, [math.nan]))
        log.append("metrics", TABLES["metrics"].rows(2, update=[2, 3], name="x", value=[math.inf, 1.0]))
    export_command(str(run), Wanted(tensorboard=str(tmp_path)), None)
    found = read_back(tmp_path / "run")
    assert [step for _, step, _ in found["updates/policy_loss"]] == [10, 30]
    assert [step for _, step, _ in found["updates/lag_max"]] == [20, 30]
    assert [step for _, step, _ in found["metrics/x"]] == [30]
    assert "episodes/return" not in found


def test_again_changes_nothing_and_other_files_stay(run, tmp_path):
    with open_log(run) as log:
        fill(log)
    wanted = Wanted(tensorboard=str(tmp_path / "tb"), csv=str(tmp_path / "csv"))
    contents = []
    for _ in range(2):
        export_command(str(run), wanted, None)
        found = sorted([*(tmp_path / "tb").rglob("*"), *(tmp_path / "csv").rglob("*")])
        contents.append({path: path.read_bytes() for path in found if path.is_file()})
        (tmp_path / "tb/run/mine.txt").write_text("mine")
        (tmp_path / "tb/run/events.out.tfevents.0000000009.hpcrl").write_text(
            "of an attempt that was removed"
        )
    assert contents[1].pop(tmp_path / "tb/run/mine.txt") == b"mine"
    assert contents[0] == contents[1]
    assert len(contents[0]) == len(TABLES), "one event file, and a file per table but the hashes"


def test_attempts_are_joined_without_what_was_lost(run, tmp_path):
    with open_log(run) as log:
        fill(log, 1, 6)
    with open_log(
        run, attempt=2, first_update=4, provenance={"collected_at": "2026-01-02T05:00:00+00:00"}
    ) as log:
        log.append("updates", updates(5, 7))  # and no clock: as an older file
        log.append("evaluation", evaluation(4, [3.0]))
    export_command(str(run), Wanted(tensorboard=str(tmp_path / "tb")), None)
    assert len(list((tmp_path / "tb/run").iterdir())) == 2
    found = read_back(tmp_path / "tb/run")
    points = found["updates/policy_loss"]
    assert [step for _, step, _ in points] == [10, 20, 30, 40, 50, 60, 70]
    assert points[3][0] == BEGAN_S + 2.0
    began = 1767330000.0
    assert [when - began for when, *_ in points[4:]] == [0.5, 1.0, 1.5]
    assert found["evaluation/return"] == [(began, 40, 3.0)], "before the attempt's first update"
    export_command(str(run / "attempts/001.h5"), Wanted(tensorboard=str(tmp_path / "tb")), None)
    assert [s for _, s, _ in read_back(tmp_path / "tb/001")["updates/policy_loss"]] == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]
    merge(run, tmp_path / "merged.h5")
    export_command(str(tmp_path / "merged.h5"), Wanted(tensorboard=str(tmp_path / "tb")), None)
    assert read_back(tmp_path / "tb/merged") == found


def test_a_live_run_is_followed_and_ends_as_one_that_was_exported_whole(run, tmp_path):
    """Rows come in every order that flushes allow: metrics before their update, episodes of one update in two looks."""
    following = Export(run, Wanted(tensorboard=str(tmp_path / "live")), follow=True)
    with open_log(run) as log:
        for update in range(1, 8):
            log.append("metrics", TABLES["metrics"].row(update=update, name="x", value=update))
            log.append("episodes", episodes(10 * (update - 1), [float(update)]))
            log.flush()
            assert following.look(end=False) == ""
            log.append("episodes", episodes(10 * (update - 1), [float(update + 2)]))
            if update == 1:
                log.append("events", clock())
            log.append("updates", updates(update, update, time_s=float(update)))
            log.append("evaluation", evaluation(update, [update, 0.0]))
            log.flush()
            assert following.look(end=False) == ""
            # the file on disk is whole at any time
            found = read_back(tmp_path / "live/run")
            assert len(found["updates/policy_loss"]) == len(found["evaluation/return"]) == update
            assert len(found["metrics/x"]) == update
            assert [value for *_, value in found["episodes/return"]] == [
                u + 1.0 for u in range(1, update + 1)
            ]
    following.look(end=True)
    following.close()
    export_command(str(run), Wanted(tensorboard=str(tmp_path / "whole")), None)
    assert read_back(tmp_path / "live/run") == read_back(tmp_path / "whole/run")


def test_pieces_of_a_long_table_are_put_together(run, tmp_path, monkeypatch):
    """Whose borders lie within the episodes of one update, and within one evaluation."""
    with open_log(run) as log:
        fill(log, 1, 4)
        log.append("episodes", episodes([10, 10, 10, 20, 20, 30], [1.0, 2.0, 6.0, 5.0, 7.0, 9.0]))
        log.append("evaluation", evaluation(3, [1.0, 2.0, 6.0]))
    found = []
    for most in (2, 1000):
        monkeypatch.setattr("hpcrl.storage.following._MOST_ROWS", most)
        export_command(str(run), Wanted(tensorboard=str(tmp_path / str(most))), None)
        found.append(read_back(tmp_path / f"{most}/run"))
    assert [value for *_, value in found[0]["episodes/return"]] == [3.0, 6.0, 9.0]
    assert found[0]["evaluation/return"] == [(BEGAN_S + 1.5, 30, 3.0)]
    assert found[0] == found[1]


def test_one_who_looks_already_sees_what_a_resume_takes_back(run, tmp_path):
    following = Export(run, Wanted(tensorboard=str(tmp_path)), follow=True)
    with open_log(run) as log:
        fill(log, 1, 6)
    following.look(end=False)
    viewer = EventAccumulator(str(tmp_path / "run"), size_guidance={"scalars": 0})
    viewer.Reload()
    assert len(viewer.Scalars("updates/policy_loss")) == 6
    with open_log(run, attempt=2, first_update=4) as log:
        fill(log, 5, 5)
        log.flush()
        following.look(end=False)
        viewer.Reload()
        assert [one.step for one in viewer.Scalars("updates/policy_loss")] == [10, 20, 30, 40, 50]
    following.close()


def test_follow_ends_with_the_run(run, tmp_path, monkeypatch, capsys):
    log = open_log(run)
    fill(log, 1, 2)
    log.flush()
    said = iter(["running", "running", "finished"])

    def status(path):
        word = next(said)
        if word == "finished":
            log.append("updates", updates(3, 9))
            log.close()
        return {"status": word}

    monkeypatch.setattr(export_module, "read_status", status)
    assert export_command(str(run), Wanted(tensorboard=str(tmp_path)), 0.01) == 0
    assert len(read_back(tmp_path / "run")["updates/policy_loss"]) == 9
    assert "points" in capsys.readouterr().out


def test_a_missing_library_is_said_before_there_is_a_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match="tensorboardX"):
        export_command(str(tmp_path / "later"), Wanted(tensorboard="x"), 1.0)


def test_csv_reads_as_the_tables_do(run, tmp_path):
    with open_log(run) as log:
        log.append("updates", updates(1, 3, policy_loss=[0.1, math.nan, 1 / 3], entropy=math.inf))
        log.append("events", TABLES["events"].rows(2, kind="x", text=['größe, "5"', "two\nlines"]))
    export_command(str(run), Wanted(csv=str(tmp_path)), None)
    for name in TABLES:
        if name != "hashes":
            frame = pd.read_csv(tmp_path / f"run/{name}.csv")
            rows = read_table(run, name)
            assert list(frame.columns) == list(rows.dtype.names) and len(frame) == len(rows)
            for column in rows.dtype.names:
                if rows[column].dtype.kind != "S" and len(rows):
                    np.testing.assert_array_equal(frame[column].to_numpy(), rows[column])
    assert pd.read_csv(tmp_path / "run/events.csv")["text"].tolist() == ['größe, "5"', "two\nlines"]


@pytest.mark.parametrize(("extra", "module"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_library_is_named_with_its_extra(run, tmp_path, monkeypatch, extra, module):
    open_log(run).close()
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=rf"--{extra} needs {module}.*pip install 'hpcrl\[{extra}\]'"):
        export_command(str(run), Wanted(**{extra: str(tmp_path / "out")}), None)


def test_refusals(run, tmp_path):
    with pytest.raises(ConfigError, match="say what to write: --tensorboard DIR"):
        export_command(str(run), Wanted(), None)
    with pytest.raises(ConfigError, match="does not exist"):
        export_command(str(tmp_path / "no"), Wanted(csv="x"), None)
    with pytest.raises(ConfigError, match="--every 0: give seconds above 0"):
        export_command(str(run), Wanted(csv="x"), 0.0)
    open_log(run).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="name another folder"):
        export_command(str(run), Wanted(csv=str(tmp_path / "file")), None)


def test_a_damaged_file_is_said_by_the_exit_code(run, tmp_path, caplog):
    with open_log(run) as log:
        fill(log)
    (run / "attempts/002.h5").write_bytes(b"no HDF5")
    assert export_command(str(run), Wanted(tensorboard=str(tmp_path)), None) == 1
    assert "002.h5 cannot be read" in caplog.text
    assert len(read_back(tmp_path / "run")["updates/policy_loss"]) == 20
