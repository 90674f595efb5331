import itertools
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from hpcrl.storage import checkpoint
from hpcrl.storage.components import COMPONENTS
from hpcrl.storage.files import SEAL


@pytest.fixture(autouse=True)
def any_component(monkeypatch):
    """What the components of a run are does not matter here."""
    monkeypatch.setitem(COMPONENTS, "values", COMPONENTS["algorithm"])


def save_parts(run, update, parts, *, keep=2, meta=None, keep_best=0):
    """A set of parts with one component each, by one process."""
    hashes = {
        part: checkpoint.write_part(run, update, part, {"values": values}) for part, values in parts.items()
    }
    return checkpoint.complete(run, update, hashes, meta=meta or {}, keep=keep, keep_best=keep_best)


def load(run):
    """(update, parts, meta) of the newest set."""
    saved = checkpoint.newest(run)
    parts = {}
    for part in saved.parts:
        saved.restore(part, "values", lambda values, part=part: parts.__setitem__(part, values))
    return saved.update, parts, saved.meta


def parts(update):
    """Two parts that both name their update, so that a mixture would show."""
    return {
        "learner": {"parameters": np.full(1000, float(update), np.float32), "update": update},
        "replay": {"cursor": update, "rng": "state " + str(update)},
    }


def assert_set(loaded, update):
    number, components, meta = loaded
    assert number == update
    assert meta["env_steps"] == update * 10
    assert components.keys() == {"learner", "replay"}
    assert components["learner"]["update"] == components["replay"]["cursor"] == update
    assert components["replay"]["rng"] == f"state {update}"
    assert (components["learner"]["parameters"] == update).all()


def save(run, update, *, score=None, **kwargs):
    meta = {"env_steps": update * 10} | ({} if score is None else {"score": score})
    return save_parts(run, update, parts(update), meta=meta, **kwargs)


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(0, np.float32),
        np.zeros((3, 0, 2), np.int16),
        np.array(3.5),
        np.array([True, False]),
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.array([np.nan, np.inf, -0.0]),
        np.arange(10)[::3],
        np.array([1 + 2j], np.complex64),
    ],
    ids=str,
)
def test_arrays_survive_bit_for_bit(tmp_path, value):
    save_parts(tmp_path, 0, {"x": {"value": value}})
    back = load(tmp_path)[1]["x"]["value"]
    assert back.dtype == value.dtype and back.shape == value.shape
    assert back.tobytes() == value.tobytes()


@pytest.mark.parametrize("value", [0, -1, 2**127 - 1, -(2**200), 0.1, float("inf"), "", "é\n", "0"])
def test_scalars_keep_their_type(tmp_path, value):
    save_parts(tmp_path, 0, {"x": {"value": value}})
    back = load(tmp_path)[1]["x"]["value"]
    assert back == value and type(back) is type(value)


def test_names_with_dots_slashes_and_empty_components_survive(tmp_path):
    components = {"net.0": {"torso.0.weight": 1, "adam/m": 2, "adam/v": 3}, "empty": {}}
    save_parts(tmp_path, 7, components)
    assert load(tmp_path) == (7, components, {})


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({"x": {"value": np.array([object()])}}, "'x/values/value' has type object"),
        ({"x": {"value": np.array(["a"])}}, "use numbers or bool"),
        ({"x": {"value": None}}, "has type NoneType"),
        ({"x": {"value": True}}, "has type bool"),
        ({"x": {"": 1}}, "name cannot be stored"),
        ({"x": {"a/../b": 1}}, "name cannot be stored"),
        ({"../x": {}}, "part name '../x'"),
        ({".x": {}}, "part name '.x'"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_the_older_set_stays(tmp_path, components, message):
    save(tmp_path, 1)
    with pytest.raises(ValueError, match=message):
        save_parts(tmp_path, 2, components)
    assert_set(load(tmp_path), 1)
    save(tmp_path, 3)
    assert names(tmp_path) == ["000000000001", "000000000003"]


@pytest.mark.parametrize(("update", "keep"), [(-1, 1), (0, 0)])
def test_negative_updates_and_keeping_nothing_are_refused(tmp_path, update, keep):
    with pytest.raises(ValueError, match="at least"):
        save_parts(tmp_path, update, {"x": {}}, keep=keep)


def test_the_newest_few_are_kept(tmp_path):
    for update in (0, 5, 10, 100):
        save(tmp_path, update)
    assert names(tmp_path) == ["000000000010", "000000000100"]
    save(tmp_path, 101, keep=1)
    assert names(tmp_path) == ["000000000101"]


def test_the_set_just_saved_is_never_the_one_removed(tmp_path):
    save(tmp_path, 100)
    save(tmp_path, 60, keep=1)  # resumed from before 100, which was damaged
    assert names(tmp_path) == ["000000000060", "000000000100"]


def test_the_same_update_can_be_saved_again(tmp_path):
    save(tmp_path, 1)
    save_parts(tmp_path, 1, {"x": {"value": 5}})
    assert load(tmp_path) == (1, {"x": {"value": 5}}, {})
    assert names(tmp_path) == ["000000000001"]


def test_no_checkpoint_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint in .*checkpoints"):
        load(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load(tmp_path)


@pytest.mark.parametrize("file", ["learner.h5", "replay.h5"])
def test_one_flipped_byte_anywhere_falls_back_to_the_older_set(tmp_path, caplog, file):
    save(tmp_path, 1)
    path = save(tmp_path, 2) / file
    good = path.read_bytes()
    for position in (0, len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[position] ^= 1
        path.write_bytes(bad)
        caplog.clear()
        assert_set(load(tmp_path), 1)
        assert f"000000000002/{file} does not match the hash" in caplog.text
    path.write_bytes(good)
    assert_set(load(tmp_path), 2)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "learner.h5").unlink(), "learner.h5 is missing"),
        (lambda path: (path / "learner.h5").write_bytes(b""), "learner.h5 does not match"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing or not"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json is missing or not"),
        (lambda path: (path / "manifest.json").write_text("{}"), "manifest.json is missing or not"),
        (lambda path: edit(path, update=9), "belongs to update 9"),
        (lambda path: edit(path, format=99), "has checkpoint format 99"),
        (lambda path: edit(path, format=2), "manifest.json does not match its own hash"),
        (lambda path: edit(path, meta={"env_steps": 21}), "manifest.json does not match its own hash"),
        (lambda path: edit(path, **{SEAL: None}), "manifest.json does not match its own hash"),
        (lambda path: shutil.copytree(path.with_name("000000000001"), path, dirs_exist_ok=True), "update 1"),
    ],
)
def test_every_damage_is_named_and_passed_over(tmp_path, caplog, damage, message):
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    assert_set(load(tmp_path), 1)
    assert message in caplog.text


def test_a_manifest_of_before_it_had_a_hash_is_taken(tmp_path):
    path = save(tmp_path, 1) / "manifest.json"
    values = json.loads(path.read_text())
    del values[SEAL]
    path.write_text(json.dumps(values | {"format": 2}))
    assert_set(load(tmp_path), 1)


def test_all_damaged_is_an_error_that_names_each(tmp_path):
    for update in (1, 2):
        (save(tmp_path, update) / "replay.h5").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"is damaged: .*000000000002/replay.h5 .*000000000001/replay.h5"):
        load(tmp_path)


def test_opening_a_checkpoint_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("unpickled"))
    monkeypatch.setattr(pickle, "load", lambda *_: pytest.fail("unpickled"))
    path = save(tmp_path, 1)
    assert_set(load(tmp_path), 1)
    assert sorted(item.name for item in path.iterdir()) == ["learner.h5", "manifest.json", "replay.h5"]


def test_a_kill_at_any_step_of_saving_leaves_a_whole_set(tmp_path):
    outcomes = []
    for step in itertools.count():
        run = tmp_path / str(step)
        save(run, 1)
        save(run, 2)
        killed = save_and_die_at(run, 3, step)
        newest = load(run)
        assert_set(newest, newest[0])
        assert newest[0] in (2, 3)
        outcomes.append(newest[0])
        for name in visible(run):  # also while an old set is being removed
            assert int(name) in (1, 2, 3)
            found = sorted(path.name for path in (run / "checkpoints" / name).iterdir())
            assert found == ["learner.h5", "manifest.json", "replay.h5"]
        save(run, 4)
        assert names(run)[-1] == "000000000004" and not any(name.startswith(".") for name in names(run))
        if not killed:
            break
    assert outcomes == sorted(outcomes), "once the new set is there, later steps keep it"
    assert outcomes[0] == 2 and outcomes[-1] == 3 and len(outcomes) > 10


@pytest.mark.parametrize(
    ("scores", "keep", "keep_best", "stay", "best"),
    [
        ([None, None, None], 1, 1, [3], None),  # no episode has ended yet
        ([5.0, 1.0, 2.0], 1, 1, [1, 3], 1),
        ([5.0, 1.0, 2.0], 2, 1, [1, 2, 3], 1),
        ([1.0, 5.0, 2.0], 1, 1, [2, 3], 2),
        ([1.0, 2.0, 5.0], 1, 1, [3], 3),  # the best is the newest
        ([5.0, 5.0, 1.0], 1, 1, [2, 3], 2),  # of equal ones the newer
        ([5.0, 5.0, 5.0], 1, 1, [3], 3),
        ([-5.0, None, -9.0], 1, 1, [1, 3], 1),
        ([5.0, float("nan"), float("inf")], 1, 1, [1, 3], 1),
        ([None, 0.0, None], 1, 1, [2, 3], 2),
        ([5.0, 4.0, 3.0], 1, 0, [3], None),
        ([1.0, 5.0, 4.0, 0.0], 1, 2, [2, 3, 4], 2),
        ([5.0, 1.0, 4.0, 0.0], 1, 2, [1, 3, 4], 1),
    ],
)
def test_the_best_stays_beside_the_newest(tmp_path, scores, keep, keep_best, stay, best):
    for update, score in enumerate(scores, 1):
        save(tmp_path, update, score=score, keep=keep, keep_best=keep_best)
    link = tmp_path / "checkpoints" / "best"
    assert [int(name) for name in names(tmp_path) if name.isdigit()] == stay
    assert (int(link.readlink().name) if link.is_symlink() else None) == best
    assert names(tmp_path) == [f"{update:012d}" for update in stay] + ["best"] * (best is not None)
    assert load(tmp_path)[0] == len(scores), "a run goes on from the newest"


def test_a_damaged_manifest_has_no_score(tmp_path):
    (save(tmp_path, 1, score=9.0, keep_best=1) / "manifest.json").write_text("{")
    save(tmp_path, 2, score=1.0, keep=1, keep_best=1)
    assert names(tmp_path) == ["000000000002", "best"]
    assert checkpoint.by_score(tmp_path) == [(2, 1.0)]


def test_a_copy_of_a_run_may_have_followed_the_link(tmp_path):
    save(tmp_path / "run", 1, score=9.0, keep_best=1)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # makes a folder of `best`
    save(tmp_path / "copy", 2, score=10.0, keep_best=1)
    assert (tmp_path / "copy" / "checkpoints" / "best").readlink().name == "000000000002"


def test_a_kill_at_any_step_keeps_the_best(tmp_path):
    for step in itertools.count():
        run = tmp_path / str(step)
        save(run, 1, score=5.0, keep_best=1)
        killed = save_and_die_at(run, 3, step, score=9.0, keep=1, keep_best=1)
        assert_set(load(run), load(run)[0])
        link = run / "checkpoints" / "best"
        assert (link / "manifest.json").is_file(), "the link leads to a set at any time"
        assert checkpoint.by_score(run)[0][1] >= 5.0
        save(run, 4, score=0.0, keep=1, keep_best=1)
        assert link.readlink().name == f"{checkpoint.by_score(run)[0][0]:012d}"
        assert not any(name.startswith(".") for name in names(run))
        if not killed:
            assert link.readlink().name == f"{3:012d}"
            break


def test_a_kill_while_the_same_update_is_replaced_never_leaves_a_mixture(tmp_path):
    for step in itertools.count():
        run = tmp_path / str(step)
        save(run, 1)
        save(run, 2)
        killed = save_and_die_at(run, 2, step)
        newest = load(run)
        assert_set(newest, newest[0])
        if not killed:
            assert newest[0] == 2
            break


def visible(run):
    return [name for name in names(run) if not name.startswith(".")]


def edit(path, **values):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | values))


def save_and_die_at(run, update, step, **kwargs):
    """Save in a child that dies before its `step`-th change of the disk. Returns whether it died."""
    child = os.fork()
    if child == 0:
        count = itertools.count()

        def deadly(function):
            def call(*args, **kwargs):
                if next(count) == step:
                    os._exit(9)
                return function(*args, **kwargs)

            return call

        for owner, name in (
            (Path, "mkdir"),
            (Path, "rename"),
            (Path, "symlink_to"),
            (Path, "write_text"),
            (os, "unlink"),
            (os, "rmdir"),
            (checkpoint, "sync"),
            (checkpoint.h5py.Group, "create_dataset"),
        ):
            setattr(owner, name, deadly(getattr(owner, name)))
        try:
            save(run, update, **kwargs)
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def test_a_component_must_be_known_and_of_this_version(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"component 'other' is not one of algorithm, "):
        checkpoint.write_part(tmp_path, 1, "learner-0", {"other": {}})
    save(tmp_path, 1)
    saved = checkpoint.newest(tmp_path)
    with pytest.raises(ValueError, match="has no component 'queue'"):
        saved.restore("learner", "queue", pytest.fail)
    monkeypatch.setitem(COMPONENTS, "values", checkpoint.COMPONENTS["values"].__class__(2, ""))
    with pytest.raises(ValueError, match=r"'values' .* has version 1; this hpcrl reads 2"):
        saved.restore("learner", "values", pytest.fail)


def test_parts_are_found_by_role_and_role_rank(tmp_path):
    save_parts(tmp_path, 3, {name: {} for name in ("actor-10", "actor-2", "learner-0", "replay-0")})
    assert checkpoint.newest(tmp_path).of_role("actor") == ["actor-2", "actor-10"]
    assert checkpoint.newest(tmp_path).of_role("worker") == []


def test_a_set_whose_part_never_came_does_not_exist(tmp_path):
    save(tmp_path, 1)
    found = checkpoint.write_part(tmp_path, 2, "learner-0", {})
    with pytest.raises(FileNotFoundError, match=r"actor-0.h5 was written, but is not there"):
        checkpoint.complete(tmp_path, 2, {"learner-0": found, "actor-0": found}, meta={})
    assert_set(load(tmp_path), 1)
    checkpoint.remove_leftovers(tmp_path)
    assert names(tmp_path) == ["000000000001"]


def test_newer_sets_that_are_damaged_are_put_aside_under_names_of_their_own(tmp_path):
    for _ in range(2):
        for update in (1, 2):
            save(tmp_path, update)
        moved = checkpoint.set_aside_newer(tmp_path, 1)
        assert [path.name[:20] for path in moved] == ["damaged-000000000002"]
        assert_set(load(tmp_path), 1)
    assert len([name for name in names(tmp_path) if name.startswith("damaged")]) == 2


def test_written_at_once_a_set_bears_its_name_before_it_is_whole(tmp_path):
    """What writing aside protects from: `faults.without=atomic-rename`."""
    hashes = {
        part: checkpoint.write_part(tmp_path, 2, part, {"values": values}, aside=False)
        for part, values in parts(2).items()
    }
    (torn,) = checkpoint.find_sets(tmp_path)
    with pytest.raises(ValueError, match="is missing or not a manifest"):
        checkpoint.verify(torn)
    checkpoint.complete(tmp_path, 2, hashes, meta={"env_steps": 20}, aside=False)
    assert_set(load(tmp_path), 2)


def test_not_compared_a_damaged_set_is_taken(tmp_path):
    save(tmp_path, 1)
    victim = save(tmp_path, 2) / "learner.h5"
    victim.write_bytes(victim.read_bytes() + b"x")
    assert checkpoint.newest(tmp_path).update == 1
    assert checkpoint.newest(tmp_path, compare=False).update == 2
