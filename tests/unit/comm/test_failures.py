"""Streams whose other end may die, without MPI: what MPI would raise is raised by hand."""

import numpy as np
import pytest
from mpi4py import MPI

from hpcrl.comm.failures import MortalReceiver, MortalSender
from hpcrl.comm.stream import Tag

DEAD = MPI.Exception(MPI.ERR_PROC_FAILED)


class Knowledge:
    """In place of Failures."""

    def __init__(self):
        self.dead = set()


class End:
    """An end of a stream to or from rank 3 of which every call may raise."""

    dest = source = 3
    tag = Tag.GRANT
    messages, bytes, posted, drained = 4, 32, 2, False

    def __init__(self):
        self.error = None
        self.calls = []

    def _call(self, name, result=None):
        if self.error is not None:
            raise self.error
        self.calls.append(name)
        return result

    def send(self, buffer, on_sent=None):
        self._call("send")

    def post(self, buffer):
        self._call("post")

    def poll(self):
        return self._call("poll", 7)

    def close(self):
        self._call("close")

    def cancel(self):
        self._call("cancel")

    def state(self):
        return "GRANT"


KINDS = (MortalSender, MortalReceiver)


def known(end, failures):
    failures.dead.add(3)


def raised(end, failures):
    end.error = DEAD


def use(kind, stream):
    """What may be called at any time; the result of the poll."""
    if kind is MortalSender:
        stream.send(np.zeros(1))
    else:
        stream.post(np.zeros(1))
    return stream.poll()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes_while_the_other_lives(kind):
    end, failures = End(), Knowledge()
    failures.dead.add(2)
    stream = kind(end, failures)
    assert use(kind, stream) == 7
    assert (stream.messages, stream.bytes, stream.drained, stream.state()) == (4, 32, False, "GRANT")
    if kind is not MortalSender:
        assert stream.posted == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [known, raised])
def test_a_stream_is_over_when_its_other_end_is_dead(kind, how):
    end, failures = End(), Knowledge()
    stream = kind(end, failures)
    how(end, failures)
    assert use(kind, stream) == (0 if kind is MortalSender else None)
    end.error = None
    calls = len(end.calls)
    use(kind, stream)
    assert stream.drained and "dead" in stream.state()
    if kind is MortalSender:
        stream.close()
    else:
        assert stream.posted == 0
        stream.cancel()
    assert len(end.calls) == calls == 0


def test_a_buffer_for_the_dead_is_free_at_once():
    failures, freed = Knowledge(), []
    stream = MortalSender(End(), failures)
    failures.dead.add(3)
    stream.send(np.zeros(1), on_sent=lambda: freed.append(1))
    assert freed == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_other_errors_are_errors(kind):
    end = End()
    end.error = MPI.Exception(MPI.ERR_TRUNCATE)
    with pytest.raises(MPI.Exception):
        use(kind, kind(end, Knowledge()))
