"""What becomes of a checkpoint of which the disk refuses a part."""

import errno

import pytest

from hpcrl.config import RunConfig
from hpcrl.roles import completion
from hpcrl.roles.completion import Completion, mark_of
from hpcrl.storage import checkpoint
from hpcrl.storage.components import COMPONENTS
from tests.system.support import TOY

PARTS = ["actor-0", "learner-0"]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(completion, "RETRY_S", 0.0)
    monkeypatch.setitem(COMPONENTS, "values", COMPONENTS["algorithm"])


def make(run, patience_s=3600.0, last=-1):
    storage = {"patience_s": patience_s}
    return Completion(run, RunConfig.parse(TOY | {"storage": storage}), last)


def note(one, run, update, *refused, final=False):
    """Each part is written, or refused."""
    for part in PARTS:
        found = errno.EIO
        if part not in refused:
            found = bytes.fromhex(checkpoint.write_part(run, update, part, {"values": {"x": update}}))
        one.note(part, update, found, final=final)


def settle(one, update, final=False):
    one.settle(PARTS, mark_of(update, final), None)
    return [kind for kind, _ in one.take_told()]


def folders(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_a_refused_part_costs_its_set_and_the_next_is_tried_soon(tmp_path):
    one = make(tmp_path)
    one.begin(3, {}, 0.0, final=False)
    note(one, tmp_path, 3)
    assert settle(one, 3) == ["checkpoint"] and not one.due(4)
    one.begin(5, {}, 0.0, final=False)
    one.note("actor-0", 5, errno.EIO, final=False)
    assert settle(one, 5) == ["disk_refuses"] and one.pending, "another rank may still be writing"
    note(one, tmp_path, 5, "actor-0")
    assert settle(one, 5) == [] and (one.pending, one.last) == (False, 3)
    assert folders(tmp_path) == ["000000000003"]
    one._retry_at = 0.0
    assert one.due(6) and not one.patience.over
    one.begin(6, {}, 0.0, final=False)
    note(one, tmp_path, 5)  # too late
    assert settle(one, 6) == [] and one.pending
    note(one, tmp_path, 6)
    assert settle(one, 6) == ["disk_well", "checkpoint"] and not one.due(7)
    assert folders(tmp_path) == ["000000000003", "000000000006"] and one.last == 6


def refuse(monkeypatch, times):
    """The manifest cannot be written so many times."""
    real, calls = checkpoint.complete, []

    def complete(*arguments, **how):
        calls.append(how)
        if len(calls) <= times:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **how)

    monkeypatch.setattr(checkpoint, "complete", complete)


def test_a_refused_manifest_costs_its_set_too(tmp_path, monkeypatch):
    refuse(monkeypatch, 1)
    one = make(tmp_path, patience_s=0.0)
    one.begin(3, {}, 0.0, final=False)
    note(one, tmp_path, 3)
    one.settle(PARTS, mark_of(3, False), None)
    ((kind, text),) = one.take_told()
    assert kind == "disk_refuses" and "the manifest of checkpoint 3 cannot be written: " in text
    assert "No space left" in text and "up to 0 s (storage.patience_s)" in text
    assert not one.pending and one.patience.over and folders(tmp_path) == []


def test_the_last_set_is_not_given_up(tmp_path, monkeypatch):
    refuse(monkeypatch, 2)
    one = make(tmp_path)
    one.begin(3, {}, 0.0, final=True)
    note(one, tmp_path, 3, "learner-0", final=True)
    assert settle(one, 3, final=True) == ["disk_refuses"] and one.pending
    note(one, tmp_path, 3, final=True)
    assert [settle(one, 3, final=True) for _ in range(3)] == [[], [], ["disk_well", "checkpoint"]]
    assert checkpoint.newest(tmp_path).update == 3
