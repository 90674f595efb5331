import numpy as np
import pytest

from hpcrl.comm.mailbox import CELLS, MOST_BYTES
from tests.mpi.support import meet, open_test_world, poll_until


def test_more_messages_than_cells_wait_with_their_sender(comm):
    count = 5 * CELLS
    with open_test_world(comm) as world:
        mail = world.node.mail
        for number in range(count):
            for dest in range(comm.size):
                mail.put(dest, 7, number.to_bytes(8, "little"))
        got = {source: [] for source in range(comm.size)}

        def take(source):
            while (message := mail.take(source, 7)) is not None:
                got[source].append(int.from_bytes(message, "little"))
            return len(got[source]) == count

        # to the end, also to those from whom everything has come
        flush = [lambda dest=dest: mail.flush(dest) for dest in range(comm.size)]
        poll_until(world, *[lambda source=source: take(source) for source in got], progress=flush)
        assert all(numbers == list(range(count)) for numbers in got.values())
        meet(world, progress=flush)
        assert all(mail.flush(dest) for dest in range(comm.size))


@pytest.mark.parametrize("nbytes", [0, 1, 8, MOST_BYTES])
def test_messages_of_every_length(comm, nbytes):
    with open_test_world(comm) as world:
        mail = world.node.mail
        for tag in (1, 2):
            mail.put((comm.rank + 1) % comm.size, tag, bytes([tag]) * nbytes)
        source = (comm.rank - 1) % comm.size
        got = {}

        def take():
            for tag in (2, 1):
                if (message := mail.take(source, tag)) is not None:
                    got[tag] = message
            return len(got) == 2

        poll_until(world, take)
        assert got == {tag: bytes([tag]) * nbytes for tag in (1, 2)}


def test_a_message_wakes_who_sleeps_on_its_bell(comm):
    """Rank 0 sleeps for a minute at most; a message ends that."""
    with open_test_world(comm) as world:
        bells, mail = world.node.bells, world.node.mail
        if comm.rank == 0:
            seen = bells.look()
            comm.Barrier()
            messages = []
            for source in range(1, comm.size):
                while (message := mail.take(source, 3)) is None:
                    bells.sleep(seen, 60.0)
                    seen = bells.look()
                messages.append(message)
            assert messages == [b"now"] * (comm.size - 1)
        else:
            comm.Barrier()
            mail.put(0, 3, b"now")


def test_a_ring_between_look_and_sleep_is_not_lost(comm):
    with open_test_world(comm) as world:
        bells = world.node.bells
        seen = bells.look()
        comm.Barrier()
        bells.ring((comm.rank + 1) % comm.size)
        comm.Barrier()
        assert bells.look() != seen
        bells.sleep(seen, 60.0)  # returns at once, or the test takes a minute and more than its time


def test_mail_is_for_the_node(comm):
    with open_test_world(comm, "abab"[: comm.size]) as world:
        mail = world.node.mail
        size = world.node.comm.size
        mail.put((world.node.comm.rank + 1) % size, 9, np.array([comm.rank]).tobytes())
        found = []
        previous = (world.node.comm.rank - 1) % size
        poll_until(world, lambda: found.append(mail.take(previous, 9)) or found[-1] is not None)
        assert int.from_bytes(found[-1], "little") == world.node.ranks[previous]


def test_without_shared_transport_there_is_no_mail(comm):
    with open_test_world(comm, comm={"transport": "messages"}) as world:
        assert world.node.bells is None and world.node.mail is None


def test_without_futex_a_sleep_has_its_length(comm, monkeypatch):
    slept = []
    monkeypatch.setattr("hpcrl.comm.bell._FUTEX", None)
    monkeypatch.setattr("hpcrl.comm.bell.time.sleep", slept.append)
    with open_test_world(comm) as world:
        bells = world.node.bells
        bells.ring((comm.rank + 1) % comm.size)
        comm.Barrier()
        slept.clear()
        bells.sleep(bells.look(), 0.25)
        assert slept == [0.25]
