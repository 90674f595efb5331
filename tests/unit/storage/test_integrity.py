"""Result files that were changed, killed, written by an older hpcrl, salvaged and merged."""

import json
import random
import shutil

import h5py
import numpy as np
import pytest

from hpcrl.config import ConfigError
from hpcrl.storage import SCHEMA_VERSION, TABLES, Column, RunLog, Table, link_attempts, read_table
from hpcrl.storage.integrity import check_file
from hpcrl.storage.merge import merge
from hpcrl.storage.result_file import head_hash, open_reader
from hpcrl.storage.runlog import read_heads
from hpcrl.storage.salvage import salvage
from hpcrl.storage.schema import UPGRADES
from hpcrl.storage.writing import abandon


def write(run, attempt=1, first=0, flushes=(5, 1, 7), closed=True, first_update=None):
    """An attempt's file with so many rows of two tables in each flush; not closed: as a kill leaves it."""
    path = run / f"attempts/{attempt:03d}.h5"
    log = RunLog(
        path, config_json='{"name": "it"}', provenance={"a": 1}, attempt=attempt, first_update=first_update
    )
    for count in flushes:
        update = np.arange(first, first + count) + 1
        log.append(
            "updates",
            TABLES["updates"].rows(
                count, update=update, env_steps=update * 7, time_s=update * 0.5, applied=True
            ),
        )
        log.append("events", TABLES["events"].rows(count, kind="tick", count=update, text="t"))
        log.flush()
        first += count
    if closed:
        log.close()
    else:
        abandon(log._file)
    return path


def violations(path):
    return list(check_file(path))


def contents(path):
    """Everything that counts in a file."""
    with open_reader(path) as file:
        head = head_hash(file)
    return head, {name: read_table(path, name).tobytes() for name in TABLES}


@pytest.mark.parametrize("closed", [True, False])
def test_a_whole_file_passes(tmp_path, closed):
    path = write(tmp_path, closed=closed)
    assert violations(path) == []
    rows = read_table(path, "hashes")
    assert rows["table"].tolist() == [b"updates", b"events"] * 3
    assert rows["rows"].tolist() == [5, 5, 6, 6, 13, 13]


def test_a_file_that_is_being_written_passes(tmp_path):
    with RunLog(tmp_path / "1.h5", config_json="{}", provenance={}, attempt=1) as log:
        assert violations(log.path) == []
        log.append("events", TABLES["events"].row(kind="x"))
        log.flush()
        assert violations(log.path) == []


def test_any_altered_byte_is_found_unless_nobody_reads_it(tmp_path):
    """A random sample of all bytes of the file."""
    path = write(tmp_path)
    whole, before = path.read_bytes(), contents(path)
    chosen, found = random.Random(3), 0
    for place in chosen.sample(range(len(whole)), 40):
        changed = bytearray(whole)
        changed[place] ^= 1 << chosen.randrange(8)
        path.write_bytes(changed)
        if violations(path):
            found += 1
        else:
            assert contents(path) == before, f"byte {place} was changed, and nobody saw it"
    assert found > 5


def place_of(path, name, row, column):
    """Where a value lies in the file."""
    with h5py.File(path) as file:
        dataset = file[name]
        chunk = dataset.id.get_chunk_info(0)
        offset = dataset.dtype.fields[column][1]
        return chunk.byte_offset + row * dataset.dtype.itemsize + offset


@pytest.mark.parametrize(
    ("table", "row", "column", "named"),
    [
        (
            "updates",
            0,
            "env_steps",
            "table updates: rows 1 to 5 (updates 1 to 5) are not those that were written",
        ),
        ("updates", 5, "policy_loss", "table updates: row 6 (updates 6 to 6) is not those that were written"),
        ("events", 12, "text", "table events: rows 7 to 13 are not those that were written"),
        ("hashes", 3, "sha256", "table events: row 6 is not those that were written"),
        ("hashes", 2, "rows", "table updates: row"),
    ],
)
def test_an_altered_byte_is_named(tmp_path, table, row, column, named):
    path = write(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[place_of(path, table, row, column)] ^= 1
    path.write_bytes(whole)
    assert len(found := violations(path)) == 1
    assert named in found[0]


def change(path, edit):
    with h5py.File(path, "r+", locking=False) as file:
        edit(file)


def test_a_row_that_is_removed_added_or_moved_is_found(tmp_path):
    def remove(file):
        file["updates"][8:12] = file["updates"][9:13]
        file["committed_rows"][0] = 12

    def cut(file):
        file["committed_rows"][0] = 12

    def add(file):
        file["updates"].resize((14,))
        file["committed_rows"][0] = 14

    def swap(file):
        file["updates"][2:4] = file["updates"][2:4][::-1]

    def more_than_there_are(file):
        file["committed_rows"][0] = 99

    for edit in (remove, cut, add, swap, more_than_there_are):
        path = write(tmp_path / edit.__name__)
        change(path, edit)
        assert any("001.h5: table updates: " in line for line in violations(path)), edit


def test_what_stands_beside_the_rows_is_covered_too(tmp_path):
    def unit(file):
        file["lag"].attrs["lag.unit"] = "s"

    def config(file):
        del file["config"]
        file.create_dataset("config", data=np.bytes_(b'{"name": "other"}'))

    def attempt(file):
        file.attrs["attempt"] = 2

    for edit in (unit, config, attempt):
        path = write(tmp_path / edit.__name__)
        change(path, edit)
        assert "001.h5: head: " in violations(path)[0]
    assert (
        "table lag: column lag has the unit 's'; the schema has 'update'"
        in violations(tmp_path / "unit/attempts/001.h5")[1]
    )


def test_time_and_env_steps_do_not_go_back(tmp_path):
    path = tmp_path / "1.h5"
    with RunLog(path, config_json="{}", provenance={}, attempt=1) as log:
        rows = TABLES["updates"].rows(
            3, update=[1, 2, 3], env_steps=[5, 4, 9], time_s=[1, 2, 0.5], applied=True
        )
        log.append("updates", rows)
    assert [line.split(": ", 2)[2] for line in violations(path)] == [
        "row 2: env_steps goes back from 5 to 4",
        "row 3: time_s goes back from 2.0 to 0.5",
    ]


OLDEST = {
    "updates": {"update": "i8", "env_steps": "i8", "time_s": "f8", "policy_loss": "f8", "applied": "?"},
    "lag": {"update": "i8", "lag": "i8", "env_steps": "i8"},
    "episodes": {"env_steps": "i8", "time_s": "f8", "episode_return": "f8", "truncated": "?"},
    "evaluation": {"update": "i8", "episode_return": "f8", "cut": "?"},
    "events": {"time_s": "f8", "kind": "S8", "text": "S16"},
}
"""Some tables and columns of the first files, with the bools that there were."""


def old_file(path, version=SCHEMA_VERSION):
    """As hpcrl wrote it when it knew less: no hashes, tables and columns that are not there, shorter texts."""
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs["schema_version"] = version
        file.attrs["attempt"] = 1
        file.create_dataset("config", data=np.bytes_(b"{}"))
        file.create_dataset("provenance", data=np.bytes_(b"{}"))
        for name, columns in OLDEST.items():
            rows = np.zeros(2, list(columns.items()))
            rows[next(iter(columns))] = [1, 2]
            dataset = file.create_dataset(name, data=rows, maxshape=(None,))
            for column in columns:
                dataset.attrs[f"{column}.unit"] = next(
                    one.unit for one in TABLES[name].columns if one.name == column
                )
        counts = file.create_dataset("committed_rows", data=np.full(len(OLDEST), 2))
        counts.attrs["tables"] = list(OLDEST)


def test_files_of_before_are_read_with_the_defaults_of_what_came_later(tmp_path):
    path = tmp_path / "attempts/001.h5"
    old_file(path)
    assert violations(path) == []
    for name, table in TABLES.items():
        rows = read_table(tmp_path, name)
        assert len(rows) == (2 if name in OLDEST else 0)
        for column in table.columns:
            if name in OLDEST and column.name not in OLDEST[name]:
                given = table.rows(2, **{c.name: True for c in table.columns if c.dtype == "?"})
                np.testing.assert_array_equal(rows[column.name], given[column.name])
    updates = read_table(tmp_path, "updates")
    assert updates["update"].tolist() == [1, 2] and updates["batch_use"].tolist() == [1, 1]
    assert np.isnan(updates["value_loss"]).all()


def test_files_of_an_older_version_are_upgraded_and_newer_ones_refused(tmp_path, monkeypatch, caplog):
    """As if two versions came after this one: one that counts in other units, one that renames."""
    old_file(tmp_path / "attempts/001.h5")
    table = Table("lag", (*TABLES["lag"].columns[:2], Column("weight", "i8", "1", "sum", "")), "")

    def thousands(name, rows):
        if name == "lag":
            rows = rows.copy()
            rows["lag"] *= 1000
        return rows

    def renamed(name, rows):
        if name != "lag":
            return rows
        return rows.astype([("update", "i8"), ("lag", "i8"), ("weight", "i8")])

    monkeypatch.setattr("hpcrl.storage.result_file.SCHEMA_VERSION", SCHEMA_VERSION + 2)
    monkeypatch.setitem(UPGRADES, SCHEMA_VERSION, thousands)
    monkeypatch.setitem(UPGRADES, SCHEMA_VERSION + 1, renamed)
    change(tmp_path / "attempts/001.h5", lambda file: file["lag"].__setitem__((0, "lag"), 3))
    change(tmp_path / "attempts/001.h5", lambda file: file["lag"].__setitem__((1, "env_steps"), 8))
    monkeypatch.setitem(TABLES, "lag", table)
    rows = read_table(tmp_path, "lag")
    assert rows["lag"].tolist() == [3000, 0] and rows["weight"].tolist() == [0, 8]
    monkeypatch.undo()
    old_file(tmp_path / "new/attempts/001.h5", SCHEMA_VERSION + 1)
    assert len(read_table(tmp_path / "new", "updates")) == 0
    said = f"it has schema version {SCHEMA_VERSION + 1}; this hpcrl reads up to {SCHEMA_VERSION}"
    assert said in caplog.text
    assert said in violations(tmp_path / "new/attempts/001.h5")[0]


def plain(path):
    """As any other program reads it."""
    with h5py.File(path, "r", locking=False) as file:
        return {name: file[name][:] for name in TABLES if name in file}


def killed_run(tmp_path):
    write(tmp_path, attempt=1, first_update=0)
    write(tmp_path, attempt=2, first=9, first_update=9, closed=False)
    link_attempts(tmp_path)
    return tmp_path


def test_salvage_makes_what_a_kill_left_readable_for_everybody_and_keeps_it(tmp_path):
    run = killed_run(tmp_path)
    path, left = run / "attempts/002.h5", (run / "attempts/002.h5").read_bytes()
    closed = (run / "attempts/001.h5").read_bytes()
    with pytest.raises(OSError, match=r"."):
        plain(path)
    before = contents(path)
    (made,), failures = salvage(run)
    assert (made.path, made.rows, made.uncommitted, made.damaged, failures) == (path, 32, 0, {}, {})
    assert made.original.read_bytes() == left
    assert (run / "attempts/001.h5").read_bytes() == closed
    assert contents(path) == before and violations(path) == []
    assert len(plain(path)["updates"]) == 13
    with h5py.File(run / "run.h5") as file:
        assert len(file["attempts/002/updates"]) == 13
    after = path.read_bytes()
    assert salvage(run) == ([], {}) and path.read_bytes() == after
    assert sorted(one.name for one in (run / "attempts").iterdir()) == ["001.h5", "002.h5", "002.h5.killed"]
    assert len(read_table(run, "updates")) == 9 + 13


def test_salvage_leaves_out_what_does_not_count_or_is_damaged_and_says_so(tmp_path):
    path = write(tmp_path, closed=False)
    with h5py.File(write(tmp_path / "twin")) as file:  # the same layout, and open to everybody
        at = file["updates"].id.get_chunk_info(0).byte_offset + 7 * file["updates"].dtype.itemsize
        counts_at = file["committed_rows"].id.get_offset()
    bad = bytearray(path.read_bytes())
    bad[at] ^= 1  # in the third flush
    bad[counts_at + 8 * list(TABLES).index("events")] = 6
    path.write_bytes(bad)
    (made,), _ = salvage(tmp_path)
    assert (made.uncommitted, made.damaged) == (7, {"updates": 7})
    assert read_table(tmp_path, "updates")["update"].tolist() == [1, 2, 3, 4, 5, 6]
    (tmp_path / "attempts/002.h5").write_bytes(b"nothing")
    made, failures = salvage(tmp_path)
    assert made == [] and list(failures) == [tmp_path / "attempts/002.h5"]


def test_salvage_is_whole_wherever_it_is_killed(tmp_path, monkeypatch):
    for step in ("link", "replace"):
        run = killed_run(tmp_path / step)
        before = contents(run / "attempts/002.h5")

        def end(*arguments):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*{"link": ("os.link", end), "replace": ("pathlib.Path.replace", end)}[step])
            salvage(run)
        assert contents(run / "attempts/002.h5") == before
        assert len(salvage(run)[0]) == 1
        assert contents(run / "attempts/002.h5") == before
        assert len(plain(run / "attempts/002.h5")["updates"]) == 13


def test_a_run_that_is_written_is_not_salvaged(tmp_path):
    import fcntl

    run = killed_run(tmp_path)
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("node7 42")
        lock.flush()
        with pytest.raises(ConfigError, match="is being written by process 42 on host node7"):
            salvage(run)
    with pytest.raises(ConfigError, match="holds no result file"):
        salvage(tmp_path / "nothing")


def test_merge_joins_the_attempts_in_one_plain_file(tmp_path):
    run, out = killed_run(tmp_path / "run"), tmp_path / "laptop.h5"
    counts = merge(run, out)
    assert (counts["updates"], counts["events"]) == (22, 26)
    assert plain(out)["updates"]["attempt"].tolist() == [1] * 9 + [2] * 13
    for name in TABLES:
        if name != "hashes":
            assert read_table(out, name).tobytes() == read_table(run, name).tobytes()
    with h5py.File(out) as file:
        assert (
            file["updates"].attrs["env_steps.unit"] == "env_step"
            and "attempt.meaning" in file["updates"].attrs
        )
        assert json.loads(file["attempts/002/provenance"][()]) == {"a": 1}
    assert [(head.attempt, head.first_update) for head in read_heads(out)] == [(1, 0), (2, 9)]
    assert violations(out) == []
    once = out.read_bytes()
    merge(run, out)
    assert out.read_bytes() == once
    again = tmp_path / "again.h5"
    merge(out, again)
    assert again.read_bytes() == once
    change(out, lambda file: file["updates"].__setitem__((3, "env_steps"), 1))
    assert "laptop.h5: table updates: rows 1 to 22" in violations(out)[0]


def test_merge_replaces_nothing_but_its_own(tmp_path):
    run = killed_run(tmp_path / "run")
    shutil.copy(run / "attempts/001.h5", tmp_path / "mine.h5")
    for out, said in (("mine.h5", "no merged file"), ("run.h5", "another"), ("no/x.h5", "is no folder")):
        with pytest.raises(ConfigError, match=said):
            merge(run, tmp_path / out)
    with pytest.raises(ConfigError, match="holds no result file"):
        merge(tmp_path / "nothing", tmp_path / "x.h5")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mine.h5", "run"]
