"""`hpcrl audit` proves the lag contract of real runs, over a resume too, and sees when a result file was changed."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcrl.audit.verdict import audit
from hpcrl.audit.verify import verify_run
from hpcrl.diagnose.verdict import diagnose
from hpcrl.storage import TABLES, checkpoint
from hpcrl.storage.files import read_json
from hpcrl.storage.merge import merge
from hpcrl.storage.raw_rows import row_checksums
from hpcrl.storage.result_file import head_hash, open_reader
from hpcrl.storage.runlog import linked_attempts, read_heads, read_table
from hpcrl.storage.summary import describe
from tests.system.support import TOY, WITH_TESTS, run

UNEVEN = TOY | {
    "env": {"id": "tests.system.timed_envs:make_uneven", "engine": "custom", "num_envs": 7},
    "evaluation": {"episodes": 0},
    "ranks": {"actors": 6},
}
UNEVEN["env"]["kwargs"] = {"seconds": 0.0005}
RUN_DIR = "storage.run_dir=runs/it"


def two_attempts(folder, *settings):
    """A run to its budget, and on from there under a larger one."""
    first = run(folder, *settings, RUN_DIR, recipe=UNEVEN, environ=WITH_TESTS)
    assert first.code == 0, first.stderr
    again = run(folder, "budget.env_steps=800", recipe="runs/it", resume="must", environ=WITH_TESTS)
    assert again.code == 0, again.stderr
    return again


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    settings = ("lag.max_lag=2", "ranks.actors=3", "ranks.replay=2", "ranks.learners=2")
    return two_attempts(tmp_path_factory.mktemp("original"), *settings).run_dir


def test_actors_of_unequal_speed_are_proved_to_keep_the_bound(original):
    """Through two queues to two learners, and right after a resume."""
    found = audit(original)
    assert found.proved and found.notes == (), found.violations
    assert max(found.histogram) <= found.max_lag == 2
    summary = describe(original)
    assert (found.updates, found.env_steps) == (summary["updates"], summary["env_steps"])
    assert set(read_table(original, "trajectories")["attempt"]) == {1, 2}


SELDOM = ("algorithm.batch_trajectories=2", "lag.publish_every_updates=8", "lag.publish_every_seconds=0.01")


@pytest.mark.learning
@pytest.mark.parametrize(("max_lag", "settings"), [(0, ()), (1, ("lag.overdue=drop",)), (2, ()), (8, SELDOM)])
def test_so_they_are_under_other_bounds(tmp_path, max_lag, settings):
    ended = two_attempts(tmp_path, f"lag.max_lag={max_lag}", *settings)
    found = audit(ended.run_dir)
    assert found.proved and found.notes == (), found.violations
    assert max(found.histogram) <= max_lag == found.max_lag
    if max_lag == 0:  # every update takes one trajectory of each, so nobody is under-represented
        raw = ended.table("trajectories")
        assert all(
            sorted(raw["actor"][raw["update"] == update]) == list(range(6)) for update in raw["update"]
        )


class Doctor:
    """Changes one result file of a copy of the run."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def change(self, attempt, table, edit):
        """Give the rows of a table to `edit`, which returns what is to be there instead."""
        with h5py.File(self.run_dir / f"attempts/{attempt:03d}.h5", "r+", locking=False) as file:
            names = [str(name) for name in file["committed_rows"].attrs["tables"]]
            place = names.index(table)
            rows = edit(file[table][: file["committed_rows"][place]])
            file[table].resize((len(rows),))
            file[table][:] = rows
            file["committed_rows"][place] = len(rows)

    def set(self, attempt, table, index, **values):
        def edit(rows):
            for name, value in values.items():
                rows[name][index] = value(rows[name][index]) if callable(value) else value
            return rows

        self.change(attempt, table, edit)

    def remove(self, attempt, table, index):
        self.change(attempt, table, lambda rows: np.delete(rows, index))

    def set_config(self, attempt, **lag):
        with h5py.File(self.run_dir / f"attempts/{attempt:03d}.h5", "r+", locking=False) as file:
            config = json.loads(file["config"][()])
            config["lag"].update(lag)
            del file["config"]
            file.create_dataset("config", data=np.bytes_(json.dumps(config).encode()))

    def set_config_json(self, **lag):
        path = self.run_dir / "config.json"
        config = json.loads(path.read_text())
        config["lag"].update(lag)
        path.write_text(json.dumps(config))

    def make_checksums_fit(self, attempt):
        """What somebody does who knows of them."""
        sums = {}

        def read(rows):
            for update, checksum in zip(rows["update"], row_checksums(rows), strict=True):
                sums[update] = sums.get(update, 0) + checksum
            return rows

        def write(rows):
            rows["rows_checksum"] = [sums[update] for update in rows["update"]]
            return rows

        self.change(attempt, "trajectories", read)
        self.change(attempt, "updates", write)


def older(doctor):
    """One row, within the bound or not; the histogram and the checksum do not agree any more."""
    doctor.set(1, "trajectories", 5, parameter_version=lambda version: version - 1)


def from_the_future(doctor):
    doctor.set(2, "trajectories", 3, parameter_version=lambda version: version + 3)
    doctor.make_checksums_fit(2)


def row_removed(doctor):
    doctor.remove(1, "trajectories", 7)


def env_steps_changed_everywhere(doctor):
    """Every table says the same, but for the checksum."""
    first = {}

    def edit(rows):
        rows["env_steps"][0] += 1
        first["lag"] = rows["update"][0] - 1 - rows["parameter_version"][0]
        return rows

    doctor.change(1, "trajectories", edit)
    doctor.set(1, "lag", 0, env_steps=lambda number: number + 1)
    for attempt in (1, 2):
        doctor.set(attempt, "updates", slice(None), env_steps=lambda number: number + 1)
    assert first["lag"] == 0


def histogram_changed(doctor):
    doctor.set(2, "lag", 2, lag=lambda lag: lag + 1)


def summary_changed(doctor):
    doctor.set(1, "updates", 4, lag_max=lambda lag: lag + 1)


def sum_changed(doctor):
    doctor.set(2, "updates", slice(1, None), env_steps=lambda number: number + 8)


def update_removed(doctor):
    doctor.remove(1, "updates", 3)


def trained_twice(doctor):
    def edit(rows):
        rows["grant"][-1] = rows["grant"][0]
        rows["actor"][-1] = rows["actor"][0]
        return rows

    doctor.change(1, "trajectories", edit)
    doctor.make_checksums_fit(1)


def trained_twice_as_if_that_was_allowed(doctor):
    doctor.set(1, "updates", -1, batch_use=2)


def bound_raised_in_the_file(doctor):
    doctor.set_config(2, max_lag=5)


def bound_raised_beside_it(doctor):
    doctor.set_config_json(max_lag=5)


def bound_lowered_everywhere(doctor):
    """As in a file that was written under another bound than it says."""
    doctor.set_config_json(max_lag=0)
    doctor.set_config(1, max_lag=0)
    doctor.set_config(2, max_lag=0)


def attempt_removed(doctor):
    (doctor.run_dir / "attempts/001.h5").unlink()


def attempt_begins_elsewhere(doctor):
    with h5py.File(doctor.run_dir / "attempts/002.h5", "r+", locking=False) as file:
        file.attrs["first_update"] += 1


DOCTORED = {
    older: r"update \d+: its raw rows have the checksum",
    from_the_future: "was not there before that update",
    row_removed: "env_steps in `trajectories`",
    env_steps_changed_everywhere: "update 1: its raw rows have the checksum",
    histogram_changed: "in `lag`",
    summary_changed: "update 5: lag .* in `updates`",
    sum_changed: "env_steps in `trajectories`",
    update_removed: "update 4 has no row in attempt 1; update 5 follows",
    trained_twice: "trained before, in update 1",
    trained_twice_as_if_that_was_allowed: "batch_use is 2, the config allows 1",
    bound_raised_in_the_file: "lag.max_lag is 5 in 002.h5 and 2 in config.json",
    bound_raised_beside_it: "lag.max_lag is 2 in 002.h5 and 5 in config.json",
    bound_lowered_everywhere: "is more than lag.max_lag=0",
    attempt_removed: "update 1 has no row",
    attempt_begins_elsewhere: "comes before|has no row",
}


@pytest.mark.parametrize("change", DOCTORED, ids=lambda change: change.__name__)
def test_a_doctored_file_is_seen(original, tmp_path, change):
    copy = tmp_path / "run"
    shutil.copytree(original, copy)
    assert audit(copy).proved
    change(Doctor(copy))
    found = audit(copy)
    assert not found.proved
    assert any(re.search(DOCTORED[change], line) for line in found.violations), found.violations
    seen = verify_run(copy).violations
    assert set(found.violations) <= set(seen)
    assert any(re.match(r"00[12]\.h5: (table|head)", line) for line in seen) != change.__name__.endswith(
        ("beside_it", "attempt_removed")
    ), seen


def cut_in_half(doctor):
    path = doctor.run_dir / "attempts/002.h5"
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("change", "rule"), [(bound_lowered_everywhere, "lag_bound"), (cut_in_half, "damaged")]
)
def test_diagnose_names_it_and_how_to_see_more(original, tmp_path, change, rule):
    copy = tmp_path / "run"
    shutil.copytree(original, copy)
    assert rule not in [one.name for one, _ in diagnose(copy).findings]
    change(Doctor(copy))
    found = {one.name: finding for one, finding in diagnose(copy).findings}
    assert f"hpcrl {'verify' if rule == 'damaged' else 'audit'} {copy}" in found[rule].change.text


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damaged_checkpoint(run_dir):
    flip(next(iter(sorted((run_dir / "checkpoints").glob("0*/learner-1.h5")))))


def other_env_steps(run_dir):
    path = sorted((run_dir / "checkpoints").glob("0*/manifest.json"))[-1]
    manifest = json.loads(path.read_text())
    manifest["meta"]["env_steps"] += 1
    path.write_text(json.dumps(manifest))


def other_provenance(run_dir):
    (run_dir / "provenance.json").write_text("{}")


def attempt_missing(run_dir):
    (run_dir / "attempts/002.h5").rename(run_dir / "attempts/003.h5")


def link_missing(run_dir):
    shutil.copy(run_dir / "attempts/002.h5", run_dir / "run.h5")


def finished_too_early(run_dir):
    Doctor(run_dir).change(2, "events", lambda rows: rows[rows["kind"] != b"finished"])


BESIDE = {
    damaged_checkpoint: r"checkpoint 0+\d+: .*learner-1.h5 does not match the hash",
    other_env_steps: r"checkpoint 0+\d+: \d+ env_steps; its update has \d+ in `updates`",
    other_provenance: "provenance.json: not what 002.h5 holds",
    attempt_missing: "003.h5: is attempt 2; attempt 2 is to be here",
    link_missing: "run.h5: cannot be read|run.h5: links to",
    finished_too_early: "status.json: finished, but 002.h5 does not say so",
}


@pytest.mark.parametrize("change", BESIDE, ids=lambda change: change.__name__)
def test_what_does_not_agree_is_seen(original, tmp_path, change):
    copy = tmp_path / "run"
    shutil.copytree(original, copy, symlinks=True)
    found = verify_run(copy)
    assert found.sound and (found.status, found.files, found.notes) == ("finished", 2, ()), found.violations
    assert found.checkpoints >= 1
    change(copy)
    found = verify_run(copy)
    assert any(re.search(BESIDE[change], line) for line in found.violations), found.violations


def contents(path):
    """What a file says to whoever reads it, in a form that can be compared; None where it cannot be read."""
    if path.suffix == ".json":
        return read_json(path)
    if path.name == "run.h5":
        return linked_attempts(path.parent)
    with open_reader(path) as file:
        head = head_hash(file)
    return head, {name: read_table(path, name).tobytes() for name in TABLES}


@pytest.mark.parametrize(
    ("names", "each"), [("*.json", 1), pytest.param("*.*", 25, marks=pytest.mark.stress)]
)
def test_one_altered_bit_is_found_and_its_file_named_or_nobody_reads_it(original, tmp_path, names, each):
    copy, chosen = tmp_path / "run", random.Random(each)
    shutil.copytree(original, copy, symlinks=True)
    assert verify_run(copy).sound
    folder = checkpoint.find_sets(copy)[0]
    files = [one for place in (copy, copy / "attempts", folder) for one in place.glob(names)]
    assert len(files) >= 4
    for path in files:
        whole, before = path.read_bytes(), None if path.parent == folder else contents(path)
        for place in chosen.sample(range(len(whole)), min(each, len(whole))):
            changed = bytearray(whole)
            changed[place] ^= 1 << chosen.randrange(8)
            path.write_bytes(changed)
            found = verify_run(copy).violations
            if not any(path.name in line for line in found):
                where = f"byte {place} of {path.name}: {found}"
                assert not found and path.parent != folder and contents(path) == before, where
        path.write_bytes(whole)


def test_a_merged_run_is_audited_and_verified_alike(original, tmp_path):
    merge(original, tmp_path / "all.h5")
    found = audit(tmp_path / "all.h5")
    assert (found.proved, found.updates) == (True, audit(original).updates), found.violations
    assert verify_run(tmp_path / "all.h5").sound
    assert describe(original)["updates"] == read_table(tmp_path / "all.h5", "updates")["update"].max()


def test_what_a_kill_leaves_incomplete_is_said_and_the_rest_proved(original, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(original, copy)
    doctor = Doctor(copy)
    doctor.remove(2, "trajectories", -1)
    assert not audit(copy).proved
    doctor.change(2, "events", lambda rows: rows[rows["kind"] != b"finished"])
    found = audit(copy)
    last = audit(original).updates
    assert found.proved and found.updates == last - 1
    assert found.notes == (f"updates {last} to {last} are not complete: the run was killed, or goes on",)
    doctor.remove(2, "trajectories", 0)
    assert not audit(copy).proved


def test_what_a_kill_soon_after_a_checkpoint_leaves_is_said_too(original, tmp_path):
    """The run goes on from it, but the rows of the last second before the kill were not in the file yet."""
    copy = tmp_path / "run"
    shutil.copytree(original, copy)
    doctor, saved = Doctor(copy), read_heads(copy)[1].first_update
    for table in ("updates", "lag", "trajectories"):
        doctor.change(1, table, lambda rows: rows[rows["update"] < saved - 1])
    assert not audit(copy).proved
    doctor.change(1, "events", lambda rows: rows[rows["kind"] != b"finished"])
    found = audit(copy)
    assert found.proved and found.updates == audit(original).updates - 2, found.violations
    assert found.notes == (f"updates {saved - 1} to {saved} are not complete: attempt 1 was killed",)
    doctor.remove(1, "trajectories", 0)
    assert not audit(copy).proved


def test_one_attempt_by_itself(original):
    assert audit(original / "attempts/002.h5").proved
    alone = audit(original / "attempts/001.h5")
    assert alone.proved and "config.json was not compared" in alone.notes[0]
    assert audit(original / "run.h5").updates == audit(original).updates


def test_the_command_needs_neither_mpi_nor_torch(original, tmp_path):
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('mpi4py', 'torch'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from hpcrl.__main__ import main\n"
        "main(sys.argv[1:])\n"
    )

    def command(*arguments, name="audit"):
        return subprocess.run(
            [sys.executable, "-c", code, name, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )

    done = command(original)
    assert done.returncode == 0, done.stderr
    assert "lag contract proved" in done.stdout and "lag.max_lag=2" in done.stdout
    assert json.loads(command(original, "--json").stdout)["proved"] is True
    nothing = command(tmp_path)
    assert nothing.returncode == 2 and "holds no result file" in nothing.stderr
    copy = tmp_path / "run"
    shutil.copytree(original, copy, symlinks=True)
    verified = command(copy, name="verify")
    assert verified.returncode == 0 and "as written" in verified.stdout, verified.stdout + verified.stderr
    merged = command(copy, tmp_path / "all.h5", name="merge")
    assert merged.returncode == 0 and "all.h5: " in merged.stdout, merged.stderr
    assert "nothing to do" in command(copy, name="salvage").stdout
    summary_changed(Doctor(copy))
    altered = command(copy, name="verify")
    assert altered.returncode == 1 and "001.h5: table updates: rows" in altered.stdout
    violated = command(copy)
    assert violated.returncode == 1 and "NOT PROVED" in violated.stdout and "update 5: lag" in violated.stdout
