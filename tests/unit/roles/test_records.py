"""The order in which a rank's rows leave for the writer."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.roles import records
from hpcrl.roles.records import RecordSender, table_row
from hpcrl.storage.schema import TABLES


class Slow:
    """A stream whose messages leave when the test says so."""

    def __init__(self):
        self.sent, self.leave = [], []

    def send(self, block, on_sent):
        kind, count = block[:16].view(np.int64)
        if kind < 0:
            self.sent.append(("mark", [count]))
        else:
            table = list(TABLES.values())[kind]
            rows = block[16 : 16 + count * table.dtype.itemsize].view(table.dtype)
            self.sent.append((table.name, rows["update"].tolist()))
        self.leave.append(on_sent)

    def poll(self):
        return False


@pytest.fixture
def sender(monkeypatch):
    def make(longest_wait_s):
        monkeypatch.setattr(records, "_LONGEST_WAIT_S", longest_wait_s)
        stream = Slow()
        world = SimpleNamespace(sender=lambda *_: stream, plan=SimpleNamespace(writer=0))
        return RecordSender(world), stream

    return make


@pytest.mark.parametrize("longest_wait_s", [0.0, 1000.0])
@pytest.mark.parametrize("pace", list(itertools.product((0, 1, 2), repeat=4)))
def test_an_update_never_leaves_before_its_rows_of_other_tables(sender, longest_wait_s, pace):
    """However many messages get away after each update: a run may be killed between any two."""
    sender, stream = sender(longest_wait_s)
    for update, leaving in enumerate(pace, 1):
        for table in ("lag", "trajectories", "updates"):
            sender.add(
                table, table_row(table, update=update, **({"applied": True} if table == "updates" else {}))
            )
        for _ in range(min(leaving, len(stream.leave))):
            stream.leave.pop(0)()
    sender.mark(7)
    while stream.leave:
        stream.leave.pop(0)()
        sender.poll()
    there = {"lag": 0, "trajectories": 0, "updates": 0}
    for table, updates in stream.sent[:-1]:
        assert updates == list(range(there[table] + 1, updates[-1] + 1))
        there[table] = updates[-1]
        assert there["updates"] <= min(there.values())
    assert set(there.values()) == {4} and stream.sent[-1] == ("mark", [7])


def test_rows_wait_for_others_of_their_table(sender):
    sender, stream = sender(1000.0)
    for update in range(1, 4):
        sender.add("lag", table_row("lag", update=update))
    assert not sender.poll() and not stream.sent
    sender.mark(1)
    assert stream.sent == [("lag", [1, 2, 3]), ("mark", [1])]
