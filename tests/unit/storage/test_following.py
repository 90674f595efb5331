"""Readers of what comes in: the rows of `read_table`, each once, while a writer writes, is killed, and goes on."""

import os
import random
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hpcrl.storage import TABLES, read_table
from hpcrl.storage import following as following_module
from hpcrl.storage.following import Follower
from hpcrl.storage.salvage import salvage
from hpcrl.storage.writing import make_anew
from tests.unit.storage.reader import Prover
from tests.unit.storage.test_runlog import assert_whole, make_log, start_writer, update_rows

READER = Path(__file__).with_name("reader.py")
EVERY_S = 0.05


def joined(parts, table):
    found = [rows for name, rows in parts if name == table]
    return np.concatenate(found) if found else np.zeros(0, read_table(Path("nowhere"), table).dtype)


def follow(follower):
    """(whether all comes again, parts)."""
    return follower.look(), list(follower.rows())


def test_rows_come_once_and_as_read_table_has_them(tmp_path):
    follower = Follower(tmp_path, ["updates", "lag"])
    assert follow(follower) == (False, [])  # nothing is there yet
    with make_log(tmp_path) as log:
        assert follow(follower) == (True, [])
        for start, count in ((0, 3), (3, 0), (3, 5)):
            log.append("updates", update_rows(start, count))
            assert follow(follower) == (False, [])  # in memory only
            log.flush()
            again, parts = follow(follower)
            assert not again and [len(rows) for _, rows in parts] == ([count] if count else [])
            for _, rows in parts:
                assert rows["update"].tolist() == list(range(start, start + count))
                assert rows.dtype == read_table(tmp_path, "updates").dtype
        log.append("lag", TABLES["lag"].row(update=1, lag=0, env_steps=3))
    assert [name for name, _ in follow(follower)[1]] == ["lag"]
    assert follow(follower) == (False, [])


def test_a_long_table_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(following_module, "_MOST_ROWS", 100)
    with make_log(tmp_path) as log:
        log.append("updates", update_rows(0, 250))
    parts = follow(Follower(tmp_path, ["updates"]))[1]
    assert [len(rows) for _, rows in parts] == [100, 100, 50]
    assert_whole(joined(parts, "updates"))


def test_only_new_rows_are_read(tmp_path, monkeypatch):
    """Ten thousand rows that are known cost nothing when one comes."""
    read = []
    real = following_module.read_rows
    monkeypatch.setattr(
        following_module, "read_rows", lambda *given: read.append(rows := real(*given)) or rows
    )
    follower = Follower(tmp_path, ["updates"])
    with make_log(tmp_path) as log:
        log.append("updates", update_rows(0, 10_000))
        log.flush()
        follow(follower)
        log.append("updates", update_rows(10_000, 1))
        log.flush()
        read.clear()
        follow(follower)
    assert sum(map(len, read)) == 1


def test_what_a_later_attempt_takes_back_is_taken_back(tmp_path):
    """Attempt 1 came to update 6 and died; 2 goes on from 4: all comes again, without updates 5 and 6."""
    follower = Follower(tmp_path, ["updates", "events"])
    for attempt, first, last in ((1, 0, 6), (2, 4, 9)):
        with make_log(tmp_path, attempt, first_update=first) as log:
            assert follow(follower)[0]
            log.append("updates", update_rows(first + 1, last - first))
            log.append("events", TABLES["events"].row(kind=str(attempt)))
            log.flush()
            again, parts = follow(follower)
            assert not again and joined(parts, "updates")["update"].tolist() == [*range(first + 1, last + 1)]
    fresh = Follower(tmp_path, ["updates", "events"])
    again, parts = follow(fresh)
    assert again
    for table in ("updates", "events"):
        assert joined(parts, table).tobytes() == read_table(tmp_path, table).tobytes()
    assert joined(parts, "updates")["update"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert joined(parts, "updates")["attempt"].tolist() == [1] * 4 + [2] * 5


def test_the_earlier_attempts_come_again_with_the_next_one(tmp_path):
    follower = Follower(tmp_path, ["updates"])
    with make_log(tmp_path, 1, first_update=0) as log:
        log.append("updates", update_rows(1, 3))
    follow(follower)
    make_log(tmp_path, 2, first_update=2).close()
    again, parts = follow(follower)
    assert again and joined(parts, "updates")["update"].tolist() == [1, 2]
    assert follow(follower) == (False, [])


def test_a_file_that_was_made_anew_is_followed_on(tmp_path):
    """After a disk that refused, and after salvage: another file under the same name, with the rows that count."""
    log = make_log(tmp_path)
    log.append("updates", update_rows(0, 4))
    log.flush()
    follower = Follower(tmp_path, ["updates"])
    assert len(joined(follow(follower)[1], "updates")) == 4
    log._file.close()
    log._file = make_anew(log.path)
    log.append("updates", update_rows(4, 2))
    log.flush()
    assert joined(follow(follower)[1], "updates")["update"].tolist() == [4, 5]
    process_left = tmp_path / "copy/attempts"
    process_left.mkdir(parents=True)
    shutil.copy(log.path, process_left / "001.h5")  # still marked as being written
    log.close()
    copy = Follower(tmp_path / "copy", ["updates"])
    assert len(joined(follow(copy)[1], "updates")) == 6
    assert salvage(tmp_path / "copy")[0]
    assert follow(copy) == (False, [])


def test_what_cannot_be_read_is_said_and_the_rest_is_read(tmp_path):
    with make_log(tmp_path) as log:
        log.append("updates", update_rows(0, 4))
    (tmp_path / "attempts/002.h5").write_bytes(b"no HDF5 at all")
    follower = Follower(tmp_path, ["updates"])
    again, parts = follow(follower)
    assert again and len(joined(parts, "updates")) == 4
    assert "002.h5 cannot be read" in follower.trouble
    assert follow(follower) == (False, []) and "002.h5" in follower.trouble
    (tmp_path / "attempts/002.h5").unlink()
    with make_log(tmp_path, 2) as log:
        log.append("updates", update_rows(4, 1))
    assert joined(follow(follower)[1], "updates")["update"].tolist() == [0, 1, 2, 3, 4]
    assert follower.trouble == ""


def test_tables_that_do_not_exist_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no table 'update'; the tables are updates"):
        Follower(tmp_path, ["updates", "update"])


def test_the_prover_finds_a_row_that_was_changed(tmp_path):
    with make_log(tmp_path) as log:
        for start in (0, 4):
            log.append("updates", update_rows(start, 4))
            log.flush()
    parts = follow(Follower(tmp_path, list(TABLES)))[1]
    prover = Prover()
    for part in parts:
        prover.take(*part)
    assert prover.proved["updates"] == 8
    torn = Prover()
    with pytest.raises(ValueError, match="rows 4 to 8 are not those of their flush"):
        for table, rows in parts:
            if table == "updates":
                rows["env_steps"][5] += 1
            torn.take(table, rows)


def read_and_kill(run, readers, choice, folder):
    """So many readers one after the other, each killed at a random time after its first look; what they said."""
    said = []
    for number in range(readers):
        path = folder / f"reader{number}.txt"
        with path.open("wb") as out:
            command = [sys.executable, READER, run, str(EVERY_S)]
            reader = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE)
        while not path.stat().st_size and reader.poll() is None:
            time.sleep(0.005)
        time.sleep(choice.uniform(0.0, 0.4))
        reader.kill()
        _, errors = reader.communicate()
        assert reader.returncode == -9, errors.decode()
        said += [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
    return said


def assert_monotone(said):
    """In number of updates read and of rows proved, within a reader and from one to the next."""
    for first, second in pairwise(said):
        assert first <= second
    assert said[0] < said[-1] and said[-1][1] > 100, "readers must have looked while the file grew"


def flushed(said):
    return [int(line.split()[1]) for line in said.read_text().splitlines() if line.startswith("flushed")]


def test_readers_that_are_killed_again_and_again_see_whole_rows(tmp_path):
    run, said = tmp_path / "run", tmp_path / "said.txt"
    process = start_writer(run, said, interval_s=0.02, rows=7, word=b"flushed")
    try:
        assert_monotone(read_and_kill(run, 4, random.Random(7), tmp_path))
        before = len(flushed(said))
        while len(flushed(said)) < before + 3:
            assert process.poll() is None, "the writer died of its readers"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert_whole(read_table(run, "updates"))
    assert len(read_table(run, "updates")) >= flushed(said)[-1]


@pytest.mark.stress
def test_readers_that_are_killed_a_hundred_times_beside_a_real_run(tmp_path):
    recipe = f"{Path(__file__).parents[3] / 'jobs/cartpole.py'}:ppo"
    run = tmp_path / "run"
    command = [sys.executable, "-m", "hpcrl", "run", recipe, "--ranks", "1"]
    for setting in (f"storage.run_dir={run}", "storage.flush_interval_s=0.02", "budget.env_steps=1000000000"):
        command += ["--set", setting]
    with (tmp_path / "out.txt").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        while not (run / "attempts/001.h5").exists():
            assert process.poll() is None, (tmp_path / "out.txt").read_text()
            time.sleep(0.1)
        said = read_and_kill(run, 100, random.Random(3), tmp_path)
        assert process.poll() is None, (tmp_path / "out.txt").read_text()
    finally:
        process.terminate()
        code = process.wait(60)
    assert code == 75, (tmp_path / "out.txt").read_text()
    assert_monotone(said)
