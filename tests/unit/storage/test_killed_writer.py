"""What a killed writer leaves: at random times, between the calls of a flush, within a write that makes it longer."""

import random
import signal
import time

import h5py
import numpy as np
import pytest
from writer_process import assert_whole, start_writer

from hpcrl.storage import RunLog, attempt_files, read_table
from hpcrl.storage.integrity import check_file
from hpcrl.storage.salvage import salvage


def kill_at_a_random_time(run, said, kill, chosen):
    """While the file is made and later; or, every second time, when something lies there to be lost.

    Without an interval it hardly does anything but flush, and make the file longer.
    """
    interval_s, word = [0.0, 0.02][kill // 2 % 2], [b"ready", b"flushed"][kill % 2]
    process = start_writer(run, said, interval_s, rows=[1, 7, 300][kill % 3], word=word)
    time.sleep(chosen.uniform(0.0, 0.25 if word == b"ready" else 0.05))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    return interval_s


def kill_in_a_flush(run, said, kill, chosen):
    """One flush is 11 calls: 3 for each of two tables, for their hashes, 2 for the number of rows that count."""
    process = start_writer(run, said, rows=[1, 300][kill % 2], place=("call", chosen.randint(1, 66)))
    assert process.wait() == -signal.SIGKILL
    return 0.0


def kill_in_growth(run, said, kill, chosen):
    """Within a write: the kernel has done it up to that byte."""
    path = run / "attempts/001.h5"
    RunLog(path, config_json="{}", provenance={}, attempt=1).close()
    size = path.stat().st_size + chosen.randrange(1_000_000)
    path.unlink()
    process = start_writer(run, said, rows=[7, 300][kill % 2], place=("byte", size))
    assert process.wait() == -signal.SIGXFSZ
    assert path.stat().st_size == size
    return 0.0


def look_at(run, said, interval_s):
    """Every file opens, what was flushed is there and whole, and no more than an interval is lost; rows that are."""
    words = [line.split() for line in said.read_text().splitlines()]
    appended = [(int(word[1]), float(word[2])) for word in words if word[0] == "appended"]
    flushed = max((int(word[1]) for word in words if word[0] == "flushed"), default=0)
    rows, events = read_table(run, "updates"), read_table(run, "events")
    assert_whole(rows)
    assert flushed <= len(rows) <= (appended[-1][0] if appended else 1_000_000)
    assert len(events) == len(rows)
    assert (events["count"] == np.arange(len(events))).all()
    # A row is lost only if no due flush lay between it and the kill.
    lost = [when for count, when in appended if count > len(rows)]
    assert len(lost) < 2 or lost[-2] - lost[0] < max(interval_s, 1e-9)
    for path in attempt_files(run):
        assert list(check_file(path)) == []
        assert [one.damaged for one in salvage(run)[0]] == [{}]
        assert list(check_file(path)) == []
        assert_whole(read_table(run, "updates"))
        with h5py.File(path, "r", locking=False) as file:
            assert len(file["updates"]) == len(rows)
    return rows


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.stress)])
@pytest.mark.parametrize("how", [kill_at_a_random_time, kill_in_a_flush, kill_in_growth])
def test_a_kill_loses_nothing_flushed_and_at_most_one_interval(tmp_path, how, kills):
    chosen = random.Random(kills)
    for kill in range(kills):
        run, said = tmp_path / str(kill), tmp_path / f"{kill}.txt"
        (run / "attempts").mkdir(parents=True)
        rows = look_at(run, said, how(run, said, kill, chosen))
        assert b"flushed" not in said.read_bytes() or len(rows) > 0


@pytest.mark.parametrize("call", [12, 16, 20, 21])
def test_a_kill_in_the_second_flush(tmp_path, call):
    """Before rows are written, between two tables, before the hashes are, before the number is."""
    process = start_writer(tmp_path, tmp_path / "said.txt", rows=300, appends=9, place=("call", call))
    assert process.wait() == -signal.SIGKILL
    assert list(check_file(tmp_path / "attempts/001.h5")) == []
    assert len(read_table(tmp_path, "updates")) == len(read_table(tmp_path, "events")) == 300
    ((made,), _) = salvage(tmp_path)
    assert (made.damaged, made.uncommitted > 0) == ({}, call > 12)
