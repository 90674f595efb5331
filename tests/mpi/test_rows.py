import time
from functools import partial

import numpy as np
import pytest

from hpcrl.comm.replay_link import BatchClient, BatchServer
from hpcrl.comm.row_messages import MessageRowSender
from hpcrl.comm.rows import Arena, SharedRowSender
from hpcrl.comm.stream import Tag
from tests.mpi.support import different, drain, meet, open_test_world, poll_until

NODES = different(["aaaa", "abcd", "aabb"])
ROWS = 3


def stamp(memory, source, number):
    memory.view(np.int64)[...] = source * 10_000 + number


def stamped(memory):
    """(source, number) of a row whose every entry is from one filling."""
    values = memory.view(np.int64)
    assert (values == values[0]).all()
    return divmod(int(values[0]), 10_000)


class Ring:
    """Every rank fills rows of the next one, which grants them one by one."""

    def __init__(self, world, nbytes, slots=2, delay=0.0):
        self.world, self.delay = world, delay
        self.after, self.before = (world.rank + 1) % world.comm.size, (world.rank - 1) % world.comm.size
        self.arena = Arena(world, ROWS, nbytes)
        self.sender = world.row_sender(self.after, Tag.TRAJECTORY, self.arena, slots)
        self.receiver = world.row_receiver(self.before, Tag.TRAJECTORY, self.arena)
        self.grants = world.sender(self.before, Tag.GRANT)
        self.granted = world.receiver(self.after, Tag.GRANT)
        for _ in range(ROWS):
            self.granted.post(np.zeros(1, np.int64))
        self.may_fill = []
        self.sent, self.got = 0, []
        for row in range(ROWS):
            self.grant(row)

    def grant(self, row):
        self.receiver.post(row)
        self.grants.send(np.array([row]))

    def give(self, count):
        self.grants.poll()
        self.sender.poll()
        while (note := self.granted.poll()) is not None:
            self.may_fill.append(int(note[0]))
            self.granted.post(note)
        if self.sent < count and self.may_fill:
            row = self.may_fill[0]
            memory = self.sender.begin(row)
            if memory is not None:
                self.may_fill.pop(0)
                stamp(memory, self.world.rank, self.sent)
                self.sender.send(row)
                self.sent += 1
        return self.sent == count

    def take(self, count, grant_again=True):
        row = self.receiver.poll()
        if row is not None:
            time.sleep(self.delay)
            memory = self.arena.row(self.world.rank, row)
            self.got.append(stamped(memory))
            memory[...] = 0xFF
            if grant_again:
                self.grant(row)
        return len(self.got) == count

    def end(self):
        self.sender.close()
        self.grants.close()

        def grants_drained():
            self.give(0)
            return self.granted.drained

        drain(self.world, self.sender, self.receiver, self.grants)
        poll_until(self.world, grants_drained)
        self.receiver.cancel()
        self.granted.cancel()


def both(ring, count):
    poll_until(ring.world, partial(ring.give, count), partial(ring.take, count))


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("nbytes", [8, 1016, 1024, 1032, 100_000])
def test_every_row_arrives_once_in_order_and_whole(comm, nodes, nbytes):
    with open_test_world(comm, nodes[: comm.size], comm={"chunk_bytes": 1024}) as world:
        ring = Ring(world, nbytes)
        both(ring, 40)
        assert ring.got == [(ring.before, number) for number in range(40)]
        assert ring.sender.messages == ring.receiver.messages == 40
        assert ring.sender.bytes == ring.receiver.bytes == 40 * nbytes
        meet(world, progress=[partial(ring.give, 0)])
        ring.end()


@pytest.mark.parametrize("nodes", NODES)
def test_a_slow_receiver_is_not_overtaken(comm, nodes):
    """P03: rows are filled again the moment they are granted, slots the moment they are free."""
    with open_test_world(comm, nodes[: comm.size]) as world:
        ring = Ring(world, 80_000, slots=2, delay=0.003 * (comm.rank % 2))
        both(ring, 25)
        assert ring.got == [(ring.before, number) for number in range(25)]
        meet(world, progress=[partial(ring.give, 0)])
        ring.end()


def test_inside_a_node_a_row_is_written_where_it_is_read(comm):
    with open_test_world(comm, "aabb"[: comm.size]) as world:
        ring = Ring(world, 64)
        near = ring.after in world.node.ranks
        assert isinstance(ring.sender, SharedRowSender if near else MessageRowSender)
        poll_until(world, lambda: ring.give(0) is not None and len(ring.may_fill) > 0)
        memory = ring.sender.begin(ring.may_fill[0])
        memory[...] = 7
        meet(world, progress=[partial(ring.give, 0)])
        written = ring.before in world.node.ranks
        assert bool((ring.arena.row(world.rank, 0) == 7).all()) == written
        meet(world, progress=[partial(ring.give, 0)])  # who has looked waits for those who have not
        ring.sent = 1
        ring.sender.send(ring.may_fill.pop(0))
        poll_until(world, lambda: ring.receiver.poll() is not None)
        meet(world, progress=[partial(ring.give, 0)])
        ring.end()


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_a_row_that_was_begun_may_stay_unsent(comm, transport):
    """A stop in the middle of a trajectory."""
    with open_test_world(comm, comm={"transport": transport}) as world:
        ring = Ring(world, 64)
        poll_until(world, lambda: ring.give(0) is not None and len(ring.may_fill) == ROWS)
        assert ring.sender.begin(0) is not None
        ring.end()
        with pytest.raises(RuntimeError, match=f"stream TRAJECTORY to rank {ring.after} is closed"):
            ring.sender.send(0)


def test_without_a_free_slot_nothing_is_begun(comm):
    with open_test_world(comm, comm={"transport": "messages"}) as world:
        ring = Ring(world, 64, slots=1)
        poll_until(world, lambda: ring.give(0) is not None and len(ring.may_fill) == ROWS)
        assert ring.sender.begin(0) is not None
        assert ring.sender.begin(1) is None
        assert ring.sender.begin(0) is not None
        ring.end()


def test_too_little_shared_memory_means_messages(comm, monkeypatch):
    monkeypatch.setattr("hpcrl.comm.window.shared_memory_left", lambda: 100)
    with open_test_world(comm) as world:
        ring = Ring(world, 4096)
        assert isinstance(ring.sender, MessageRowSender)
        both(ring, 10)
        meet(world, progress=[partial(ring.give, 0)])
        ring.end()


def test_rows_still_expected_are_not_taken_back(comm):
    with open_test_world(comm) as world:
        ring = Ring(world, 64)
        with pytest.raises(
            RuntimeError, match=f"stream TRAJECTORY from rank {ring.before} still expects messages"
        ):
            ring.receiver.cancel()
        meet(world, progress=[partial(ring.give, 0)])
        ring.end()


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("note_bytes", [0, 40, 3072])
def test_batches_are_answered_in_order_with_two_requests_out(comm, nodes, note_bytes):
    """Each rank learns from the previous one and serves the next; notes ride on the requests."""
    count, batches, notes = 20, [], []
    with open_test_world(comm, nodes[: comm.size]) as world:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        arena = Arena(world, 4, 24_000)
        client = BatchClient(world, before, arena, 2, note_bytes)
        server = BatchServer(world, after, arena, 2, note_bytes)

        def ask():
            note = np.full(note_bytes, client.asked, np.uint8).tobytes()
            client.ask(note)

        def learn():
            part = client.poll()
            if part is not None:
                batches.append(stamped(part))
                if client.asked < count:
                    ask()
            return len(batches) == count

        def serve():
            while (note := server.take_request()) is not None:
                notes.append(note)
            memory = server.begin()
            if memory is not None:
                stamp(memory, comm.rank, server.served)
                server.send()
            server.poll()
            return server.served == count

        ask()
        ask()
        poll_until(world, learn, serve)
        assert batches == [(before, number) for number in range(count)]
        assert notes == [bytes([number]) * note_bytes for number in range(count)]
        client.close()
        server.close()
        drain(world, client, server)
        client.cancel()
        server.cancel()


@pytest.mark.parametrize("note_bytes", [40, 3072])
def test_notes_are_told_without_a_request(comm, note_bytes):
    """They come in order with those that ride on requests, ask for nothing, and none is lost at the end."""
    notes = []
    with open_test_world(comm) as world:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        arena = Arena(world, 4, 64)
        client = BatchClient(world, before, arena, 2, note_bytes)
        server = BatchServer(world, after, arena, 2, note_bytes)

        def note(number):
            return np.full(note_bytes, number, np.uint8).tobytes()

        def hear(count):
            while (said := server.take_request()) is not None:
                notes.append(said)
            return len(notes) == count

        client.tell(note(0))
        client.ask(note(1))
        client.tell(note(2))
        poll_until(world, lambda: hear(3))
        assert server.requested == 1
        assert server.begin() is not None
        server.send()
        assert server.begin() is None
        poll_until(world, lambda: client.poll() is not None)
        client.tell(note(3))
        client.close()
        server.close()
        drain(world, client, server)
        assert notes + server.unread == [note(number) for number in range(4)]
        client.cancel()
        server.cancel()
