import json
import os
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from writer_process import assert_whole, start_writer

from hpcrl.storage import TABLES, RunLog, attempt_files, link_attempts, read_table


def make_log(run, attempt=1, **kwargs):
    path = run / "attempts" / f"{attempt:03d}.h5"
    return RunLog(path, config_json='{"name": "ü"}', provenance={"a": 1}, attempt=attempt, **kwargs)


def update_rows(start, count):
    update = np.arange(start, start + count)
    return TABLES["updates"].rows(
        count, update=update, env_steps=update * 7, time_s=update * 0.5, applied=update % 3 == 0
    )


def test_the_whole_schema_is_there_from_the_start_and_explains_itself(tmp_path):
    make_log(tmp_path).close()
    with h5py.File(tmp_path / "attempts/001.h5") as file:
        assert file.attrs["schema_version"] == 1
        assert file.attrs["attempt"] == 1
        assert json.loads(file["config"][()]) == {"name": "ü"}
        assert json.loads(file["provenance"][()]) == {"a": 1}
        for table in TABLES.values():
            dataset = file[table.name]
            assert dataset.dtype == table.dtype
            assert dataset.shape == (0,) and dataset.maxshape == (None,) and dataset.chunks
            for column in table.columns:
                assert dataset.attrs[f"{column.name}.unit"] == column.unit
                assert dataset.attrs[f"{column.name}.meaning"] == column.meaning
                assert dataset.attrs[f"{column.name}.merge"] == column.merge


@pytest.mark.parametrize("counts", [(), (0,), (1,), (1, 0, 1), (3000, 1, 5000)])
def test_rows_come_back_as_they_went_in(tmp_path, counts):
    log, start = make_log(tmp_path), 0
    for count in counts:
        log.append("updates", update_rows(start, count))
        log.flush()
        start += count
    log.close()
    rows = read_table(tmp_path, "updates")
    assert len(rows) == sum(counts)
    assert_whole(rows)
    assert (rows["attempt"] == 1).all()
    assert rows.dtype.names == (*TABLES["updates"].dtype.names, "attempt")
    assert len(read_table(tmp_path, "lag")) == 0


def test_rows_are_buffered_by_value_until_the_interval_has_passed(tmp_path):
    with make_log(tmp_path, flush_interval_s=3600) as log:
        rows = update_rows(0, 2)
        log.append("updates", rows)
        rows["update"] = 99  # the caller may use its array again
        assert not log.maybe_flush()
        assert len(read_table(tmp_path, "updates")) == 0
        log.flush()
        assert_whole(read_table(tmp_path, "updates"))
    with make_log(tmp_path, attempt=2, flush_interval_s=1e-9) as log:
        log.append("updates", update_rows(0, 1))
        assert log.maybe_flush()
        assert len(read_table(tmp_path, "updates")) == 3


def test_wrong_tables_and_types_are_refused(tmp_path):
    with make_log(tmp_path) as log:
        with pytest.raises(ValueError, match="no table 'update'; the tables are updates"):
            log.append("update", update_rows(0, 1))
        with pytest.raises(ValueError, match="do not fit table lag"):
            log.append("lag", update_rows(0, 1))
        with pytest.raises(ValueError, match="no table 'x'"):
            read_table(tmp_path, "x")


def test_a_failed_flush_loses_nothing(tmp_path, monkeypatch):
    log = make_log(tmp_path)
    log.append("updates", update_rows(0, 5))
    log.append("lag", TABLES["lag"].row(update=1, lag=0, env_steps=3))
    real, calls = h5py.Dataset.flush, []

    def fail_second(self):
        calls.append(self.name)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(self)

    monkeypatch.setattr(h5py.Dataset, "flush", fail_second)
    with pytest.raises(OSError, match="No space"):
        log.flush()
    assert len(read_table(tmp_path, "updates")) == 0
    log.append("updates", update_rows(5, 2))
    log.close()
    assert_whole(read_table(tmp_path, "updates"))
    assert len(read_table(tmp_path, "updates")) == 7
    assert len(read_table(tmp_path, "lag")) == 1


def test_an_existing_file_is_never_appended_to(tmp_path):
    make_log(tmp_path).close()
    before = (tmp_path / "attempts/001.h5").read_bytes()
    with pytest.raises(FileExistsError, match=r"001\.h5 exists"):
        make_log(tmp_path)
    assert (tmp_path / "attempts/001.h5").read_bytes() == before


def test_attempts_are_joined_in_order_of_their_number(tmp_path):
    for attempt in (2, 10, 1):
        with make_log(tmp_path, attempt) as log:
            log.append("updates", update_rows(attempt * 100, attempt))
    rows = read_table(tmp_path, "updates")
    assert rows["attempt"].tolist() == [1, 2, 2, *[10] * 10]
    assert rows["update"][:3].tolist() == [100, 200, 201]
    assert len(read_table(tmp_path / "attempts/002.h5", "updates")) == 2  # one file by itself


def test_run_h5_links_the_attempts_and_is_replaced_whole(tmp_path):
    for attempt in (1, 2):
        with make_log(tmp_path, attempt) as log:
            log.append("updates", update_rows(0, attempt))
        link_attempts(tmp_path)
    with h5py.File(tmp_path / "run.h5") as file:
        assert [len(file[f"attempts/{name}/updates"]) for name in file["attempts"]] == [1, 2]
        assert file["attempts/001/updates"].attrs["env_steps.unit"] == "env_step"
    assert len(read_table(tmp_path / "run.h5", "updates")) == 3
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_leftovers_and_foreign_files_are_passed_over_with_a_warning(tmp_path, caplog):
    with make_log(tmp_path) as log:
        log.append("updates", update_rows(0, 4))
    (tmp_path / "attempts/.002.h5.tmp").write_bytes(b"half")  # killed while the file was being made
    assert [path.name for path in attempt_files(tmp_path)] == ["001.h5"]
    assert caplog.text == ""
    (tmp_path / "attempts/002.h5").write_bytes(b"no HDF5 at all")
    h5py.File(tmp_path / "attempts/003.h5", "w").close()
    assert len(read_table(tmp_path, "updates")) == 4
    assert "002.h5 cannot be read" in caplog.text
    assert "003.h5 cannot be read" in caplog.text


def test_no_files_no_rows(tmp_path):
    assert len(read_table(tmp_path, "episodes")) == 0


def test_live_reader_sees_whole_rows_in_growing_number_and_leaves_the_writer_alone(tmp_path):
    appends, rows_each = 150, 200
    said = tmp_path / "said.txt"
    process = start_writer(tmp_path, said, rows=rows_each, appends=appends)
    seen, growing = 0, 0
    while process.poll() is None:
        rows = read_table(tmp_path, "updates")
        assert len(rows) >= seen
        assert len(rows) % rows_each == 0
        assert_whole(rows)
        growing += len(rows) > seen
        seen = len(rows)
    assert process.returncode == 0
    assert said.read_text().splitlines()[-1] == "closed"
    assert growing >= 3, "the reader must have looked while the file grew"
    assert len(read_table(tmp_path, "updates")) == appends * rows_each


def test_a_reader_that_stays_open_does_not_stop_the_writer(tmp_path):
    process = start_writer(tmp_path, tmp_path / "said.txt", appends=400)
    while not (tmp_path / "attempts/001.h5").exists():
        time.sleep(0.005)
    with h5py.File(tmp_path / "attempts/001.h5", "r", swmr=True):
        assert process.wait(timeout=60) == 0
    assert len(read_table(tmp_path, "updates")) == 400


def test_rows_that_were_lost_with_an_attempt_do_not_count(tmp_path):
    """Attempt 1 came to update 5 and died; 2 went on from 3; 3 began again; what nobody went on from is not there."""
    for attempt, first, last in ((1, 0, 5), (2, 3, 4), (3, None, 6)):
        with make_log(tmp_path, attempt, first_update=first) as log:
            updates = np.arange(0 if first is None else first, last) + 1
            log.append("learners", TABLES["learners"].rows(len(updates), update=updates))
            log.append("events", TABLES["events"].row(kind="started"))
    rows = read_table(tmp_path, "learners")
    second = rows[rows["attempt"] < 3]
    assert second["update"].tolist() == [1, 2, 3, 4]
    assert second["attempt"].tolist() == [1, 1, 1, 2]
    assert len(read_table(tmp_path, "events")) == 3


@pytest.mark.parametrize("variable", ["TRUE", "FALSE", "BEST_EFFORT"])
def test_a_writer_and_a_reader_under_every_setting_of_the_locks_of_hdf5(tmp_path, variable):
    code = (
        "import sys; from pathlib import Path; from hpcrl.storage import RunLog, TABLES, read_table\n"
        "path = Path(sys.argv[1])\n"
        "log = RunLog(path, config_json='{}', provenance={}, attempt=1)\n"
        "log.append('events', TABLES['events'].row(kind='x')); log.flush()\n"
        "import subprocess\n"
        "read = 'import sys; from pathlib import Path; from hpcrl.storage import read_table; '"
        "'print(len(read_table(Path(sys.argv[1]), \"events\")))'\n"
        "subprocess.run([sys.executable, '-c', read, str(path)], check=True); log.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "1.h5")],
        env={**os.environ, "HDF5_USE_FILE_LOCKING": variable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_file_system_without_locks_is_explained(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError("[Errno 38] Unable to synchronously open file (unable to lock file, errno = 38)")

    monkeypatch.setattr("hpcrl.storage.writing.open_writer", refuse)
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "TRUE")
    with pytest.raises(OSError, match=r"HDF5_USE_FILE_LOCKING=TRUE asks for them.*hdf5_locking = false"):
        make_log(tmp_path)
