"""Full disks, quotas and errors of the device: rows wait, nothing old is harmed, and the end is a clear one."""

import errno
import resource
from contextlib import contextmanager

import h5py
import numpy as np
import pytest

from hpcrl.roles.result_writer import Marks, ResultWriter
from hpcrl.storage import TABLES, RunLog, read_table
from hpcrl.storage.integrity import check_file
from hpcrl.storage.runlog import ResultsLost


def make_log(run, **kwargs):
    return RunLog(run / "attempts/001.h5", config_json="{}", provenance={}, attempt=1, **kwargs)


def add(log, start, count):
    update = np.arange(start, start + count)
    log.append("updates", TABLES["updates"].rows(count, update=update, env_steps=update * 7, applied=True))
    log.append("events", TABLES["events"].rows(count, kind="tick", count=update, text="y" * 200))


def assert_all_there(run, count):
    rows, events = read_table(run, "updates"), read_table(run, "events")
    assert (rows["update"] == np.arange(count)).all() and (rows["env_steps"] == 7 * rows["update"]).all()
    assert (events["count"][events["kind"] == b"tick"] == np.arange(count)).all()
    assert len(rows) == count
    assert list(check_file(run / "attempts/001.h5")) == []


@contextmanager
def no_file_above(size):
    """As a quota: the system refuses every write behind so many bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 5_000, 40_000, 100_000])
def test_rows_wait_for_a_full_disk(tmp_path, caplog, room):
    """Wherever in a flush it becomes full; readers see the rows of before, then all of them.

    (This process reads when it may write again: HDF5 would have a reader in it flush what the writer holds.)
    """
    log = make_log(tmp_path, patience_s=3600)
    add(log, 0, 10)
    assert log.flush()
    with no_file_above(log.path.stat().st_size + room):
        for start in (10, 500, 1000):
            add(log, start, {10: 490}.get(start, 500))
            assert not log.flush()
        assert not log.maybe_flush()
    assert_all_there(tmp_path, 10)
    assert "001.h5 cannot be written; rows wait in memory" in caplog.text
    given_up = log.path.stat().st_ino
    assert log.flush()
    assert log.path.stat().st_ino != given_up, (
        "what HDF5 still holds of a file that it could not write is wrong"
    )
    assert [record.message.split("001.h5 ")[1][:9] for record in caplog.records] == ["cannot be", "is writte"]
    assert_all_there(tmp_path, 1500)
    add(log, 1500, 3)
    log.close()
    assert_all_there(tmp_path, 1503)
    h5py.File(log.path, "r").close()


def count_calls(monkeypatch, fail_at, code):
    """Have one call of h5py fail, the `fail_at`-th; returns the list of all calls."""
    calls = []
    for real in (h5py.Dataset.resize, h5py.Dataset.__setitem__, h5py.Dataset.flush):

        def call(self, *arguments, real=real):
            calls.append(real)
            if len(calls) == fail_at:
                raise OSError(code, "as if by the disk")
            return real(self, *arguments)

        monkeypatch.setattr(h5py.Dataset, real.__name__, call)
    return calls


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_an_error_in_any_call_costs_nothing(tmp_path, monkeypatch, code):
    with monkeypatch.context() as patch:
        log = make_log(tmp_path / "none", patience_s=3600)
        calls = count_calls(patch, 0, code)
        add(log, 0, 4)
        assert log.flush()
    assert len(calls) >= 11  # rows of two tables, their hashes, their number
    for fail_at in range(1, len(calls) + 1):
        run = tmp_path / str(fail_at)
        with monkeypatch.context() as patch:
            log = make_log(run, patience_s=3600)
            count_calls(patch, fail_at, code)
            add(log, 0, 4)
            assert not log.flush()
            assert list(check_file(log.path)) == []
            add(log, 4, 2)
            assert log.flush()
        log.close()
        assert_all_there(run, 6)


@pytest.mark.parametrize(
    ("how", "cause"), [({"patience_s": 0.0}, "patience_s=0"), ({"buffer_bytes": 9}, "buffer_bytes=9")]
)
def test_patience_and_memory_end(tmp_path, how, cause):
    log = make_log(tmp_path, **({"patience_s": 3600} | how))
    add(log, 0, 10)
    assert log.flush()
    add(log, 10, 500)
    with no_file_above(log.path.stat().st_size), pytest.raises(ResultsLost, match=cause) as caught:
        log.maybe_flush() if "buffer_bytes" in how else log.flush()
    assert "What was written before is whole" in str(caught.value)
    assert_all_there(tmp_path, 10)


def test_the_end_waits_for_the_disk_too(tmp_path, monkeypatch):
    log = make_log(tmp_path, patience_s=3600)
    add(log, 0, 300)
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr("hpcrl.storage.runlog.time.sleep", wait)
    with no_file_above(log.path.stat().st_size):
        log.close()
    monkeypatch.undo()
    assert len(waits) == 3
    assert_all_there(tmp_path, 300)


def test_rows_do_not_wait_for_the_interval_when_there_are_many(tmp_path):
    log = make_log(tmp_path, flush_interval_s=3600, buffer_bytes=100_000)
    add(log, 0, 50)
    assert not log.maybe_flush()
    add(log, 50, 100)
    assert log.maybe_flush()
    assert_all_there(tmp_path, 150)


def test_a_checkpoint_is_not_complete_before_its_rows_are_there(tmp_path):
    told = []
    writer = ResultWriter(
        make_log(tmp_path, patience_s=3600, flush_interval_s=1e-9), lambda table, rows: None
    )
    marks = Marks([0, 1], writer.flush, told.append)
    with no_file_above((tmp_path / "attempts/001.h5").stat().st_size):
        writer.add("updates", TABLES["updates"].rows(400, update=np.arange(400), env_steps=0, applied=True))
        for rank in (0, 1):
            marks.take(rank, 7)
        marks.poll(writer.poll())
        assert told == []
    marks.poll(writer.flush())
    assert told == [7]
    writer.close()
    assert read_table(tmp_path, "events")["kind"].tolist() == [b"disk_refuses", b"disk_well"]
