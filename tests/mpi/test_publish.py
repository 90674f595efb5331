import random
import time

import numpy as np
import pytest
from mpi4py import MPI

from hpcrl.comm import publish
from hpcrl.comm.parameters import ParameterReader, ParameterWindow
from hpcrl.comm.publish import ParameterExchange
from hpcrl.comm.ranks import share
from hpcrl.comm.slices import SliceReceiver
from hpcrl.comm.stream import Tag
from hpcrl.comm.window import SharedWindow
from tests.mpi.support import drain, learner_and_actors, meet, open_test_world, plan, poll_until, together

SIZES = [0, 1, 100_000]  # from messages that leave at once to messages that wait for their receiver
ALL_LAYOUTS = [  # (node of each rank, role of each rank, transport); the first ranks of them
    ("aaaa", "laaa", "auto"),  # one window
    ("aabb", "laaa", "auto"),  # an actor receives for the other
    ("abcd", "laaa", "auto"),  # every actor for itself
    ("aabb", "llaa", "auto"),  # two slices to one node
    ("abab", "llaa", "auto"),  # the receiver is a learner
    ("abba", "lral", "auto"),  # the receiver is a replay rank
    ("aaab", "llla", "auto"),  # three slices
    ("aaaa", "lala", "messages"),  # nothing is shared
]
ROLES = {"l": "learner", "a": "actor", "r": "replay"}


def roles_of(letters, size):
    """A plan for the first `size` ranks; someone acts."""
    pairs = [(ROLES[letter], rank) for rank, letter in enumerate(letters[:size])]
    if not any(role == "actor" for role, _ in pairs):
        pairs = [*pairs[:-1], ("actor", size - 1)] if size > 1 else [*pairs, ("actor", 0)]
    return plan(*pairs)


def different(layouts):
    """Those that differ for the ranks there are; the first of equal ones."""
    found = {}
    for nodes, letters, transport in layouts:
        key = together(nodes), roles_of(letters, MPI.COMM_WORLD.size), transport
        found.setdefault(key, (nodes, letters, transport))
    return list(found.values())


LAYOUTS = different(ALL_LAYOUTS)


class Ends:
    """One rank's part; rank 0 publishes, vectors of one number each: the version."""

    def __init__(self, world, size, roles):
        world.plan = roles
        self.world = world
        self.size = size
        self.exchange = ParameterExchange(world, size)
        self.publisher = self.exchange.publisher
        self.reader = self.exchange.reader
        self.receiver = self.exchange._receiver
        self.progress = [self.exchange.poll]
        self.source = np.zeros(size, np.float32)
        self.published = -1

    def publish_next(self):
        self.published += 1
        self.source[...] = self.published
        self.publisher.publish(self.published, self.source)
        self.source[...] = -7  # the learner goes on at once

    def publish_until(self, last):
        """Conditions of this rank: one version per round."""

        def step():
            if self.published < last:
                self.publish_next()
            return self.published >= last

        return [step] if self.publisher is not None else []

    def pure(self):
        """What the reader holds is its version, and nothing else."""
        return self.reader.vector.shape == (self.size,) and (self.reader.vector == self.reader.version).all()

    def finish(self):
        if self.publisher is not None:
            self.publisher.close()
        if self.reader is not None:
            self.reader.release()
        drain(self.world, self.exchange)
        self.exchange.cancel()


@pytest.fixture(params=LAYOUTS, ids=[" ".join(layout) for layout in LAYOUTS])
def layout(request, comm):
    nodes, letters, transport = request.param
    return nodes[: comm.size], roles_of(letters, comm.size), {"transport": transport, "chunk_bytes": 100_000}


@pytest.mark.parametrize("size", SIZES)
def test_never_a_mixture_and_never_backwards(comm, layout, size):
    """Versions are republished at full speed while readers look again and again at what they hold."""
    nodes, roles, transport = layout
    with open_test_world(comm, nodes, comm=transport) as world:
        ends = Ends(world, size, roles)
        last, seen = 100, []

        def act():
            if not ends.reader.acquire(max(seen, default=-1)):
                return False
            for _ in range(3):
                assert ends.pure()
                for poll in ends.progress if world.rank else []:
                    poll()
            if ends.reader.version not in seen[-1:]:
                seen.append(ends.reader.version)
            ends.reader.release()
            return seen[-1] == last

        acting = [act] if ends.reader is not None else []
        poll_until(world, *ends.publish_until(last), *acting, progress=ends.progress)
        meet(world, ends.progress)
        assert seen == sorted(set(seen))
        ends.finish()


def test_a_pinned_version_stays_while_the_others_come_and_go(comm):
    """A reader that holds one version for long holds up neither the publisher nor the other readers."""
    with open_test_world(comm) as world:
        ends = Ends(world, 1000, learner_and_actors(comm.size))
        holder = comm.size - 1
        poll_until(world, *ends.publish_until(0), progress=ends.progress)
        meet(world, ends.progress)
        if world.rank == holder:
            assert ends.reader.acquire(0)
        meet(world, ends.progress)
        for version in range(1, 30):
            if ends.publisher is not None:
                ends.publish_next()
            comm.Barrier()  # nobody polls
            if ends.reader is not None and world.rank != holder:
                assert ends.reader.acquire(version) and ends.reader.version == version and ends.pure()
                ends.reader.release()
            if world.rank == holder:
                assert ends.reader.version == 0 and ends.pure()
            comm.Barrier()
        if world.rank == holder:
            assert ends.reader.acquire(29) and ends.reader.version == 29 and ends.pure()
        ends.finish()


def test_a_publication_that_finds_no_buffer_is_made_up_with_the_newest(comm):
    """Two readers hold two old versions, the third buffer is current; with fewer readers one is always free."""
    with open_test_world(comm) as world:
        ends = Ends(world, 1000, learner_and_actors(comm.size))
        holders = list(range(1, comm.size))[:2]
        for rank in holders:
            poll_until(world, *ends.publish_until(ends.published + 1), progress=ends.progress)
            meet(world, ends.progress)
            if world.rank == rank:
                assert ends.reader.acquire(0) and ends.reader.version == rank - 1
            meet(world, ends.progress)
        for _ in range(4 if ends.publisher is not None else 0):
            ends.publish_next()
        if ends.publisher is not None:
            assert len(ends.publisher._owed) == len(holders) // 2  # never more than the newest
        meet(world, ends.progress)
        last = len(holders) + 3
        newest = last if len(holders) < 2 else 2
        looker = ParameterReader(ends_window(ends)) if world.rank not in holders else None
        if looker is not None:
            assert looker.acquire(0) and looker.version == newest
            assert (looker.vector == newest).all()
            looker.release()
        if world.rank in holders:
            assert ends.pure() and ends.reader.version == world.rank - 1
        meet(world, ends.progress)
        if world.rank in holders[:1]:
            ends.reader.release()
        meet(world, ends.progress)
        meet(world, ends.progress)
        if looker is not None:
            assert looker.acquire(last) and (looker.vector == last).all()
            looker.release()
        comm.Barrier()
        ends.finish()


def ends_window(ends):
    """The window of this rank's node."""
    return (ends.reader or ends.publisher)._window


def test_a_slow_reader_starts_each_segment_with_the_newest(comm):
    """P73: an actor ten times slower than the others, on the publisher's node."""
    with open_test_world(comm) as world:
        ends = Ends(world, 1000, learner_and_actors(comm.size))
        board = SharedWindow(comm, 8)
        board.mine[:8].view(np.int64)[0] = -1
        comm.Barrier()
        told = board.segments[0][:8].view(np.int64)
        last = 150

        def tell():
            if ends.published < last:
                ends.publish_next()
                board.sync()
                told[0] = ends.publisher._window.newest()[0]
            return ends.published == last

        def act():
            newest = int(told[0])
            board.sync()
            if newest < 0:
                return False
            if not ends.reader.acquire(newest):
                board.sync()
                assert ends_window(ends).newest()[0] > newest  # overwritten between two looks: once more
                return False
            assert ends.pure()
            slow = world.rank == comm.size - 1
            end = time.perf_counter() + (0.002 if slow else 0.0002)
            while time.perf_counter() < end:
                pass
            assert ends.pure()
            ends.reader.release()
            return newest == last

        acting = [act] if ends.reader is not None else []
        poll_until(world, *([tell] if ends.publisher is not None else []), *acting, progress=ends.progress)
        ends.finish()
        board.close()


@pytest.mark.parametrize("max_lag", [0, 1])
def test_exactly_the_version_that_was_granted(comm, layout, max_lag):
    """As in a deterministic run: update u needs a trajectory of each actor under version u - max_lag."""
    nodes, roles, transport = layout
    sections = {"deterministic": True, "lag": {"max_lag": max_lag}, "comm": transport}
    with open_test_world(comm, nodes, **sections) as world:
        ends = Ends(world, 1000, roles)
        rng = random.Random(world.rank)
        updates, done, used = 40, 0, []
        actors = roles.ranks("actor")
        note = world.sender(0, Tag.TRAJECTORY) if ends.reader is not None else None
        notes = (
            [world.receiver(rank, Tag.TRAJECTORY) for rank in actors] if ends.publisher is not None else []
        )
        for one in notes:
            one.post(np.zeros(1, np.int64))
        came = dict.fromkeys(range(len(notes)), 0)

        def learn():
            nonlocal done
            for index, one in enumerate(notes):
                if (buffer := one.poll()) is not None:
                    came[index] += 1
                    one.post(buffer)
            if done < updates and min(came.values()) > done:
                done += 1
                ends.publish_next()
            return done == updates

        def act():
            version = max(len(used) - max_lag, 0)
            if len(used) < updates and ends.reader.acquire(version, exactly=True):
                assert ends.reader.version == version
                if rng.random() < 0.2:
                    time.sleep(0.001)
                assert ends.pure()
                ends.reader.release()
                used.append(version)
                note.send(np.zeros(1, np.int64))
            return len(used) == updates

        if ends.publisher is not None:
            ends.publish_next()
        parts = [act] if ends.reader is not None else []
        parts += [learn] if ends.publisher is not None else []
        poll_until(world, *parts, progress=ends.progress)
        meet(world, ends.progress)
        if note is not None:
            note.close()
            drain(world, note)
        drain(world, *notes)
        for one in notes:
            one.cancel()
        ends.finish()


def test_a_version_that_is_gone_is_not_given(comm):
    with open_test_world(comm, deterministic=True, lag={"max_lag": 1}) as world:
        ends = Ends(world, 10, learner_and_actors(comm.size))
        if ends.reader is not None:
            assert not ends.reader.acquire(0) and not ends.reader.acquire(-1)
        comm.Barrier()
        poll_until(world, *ends.publish_until(5), progress=ends.progress)
        comm.Barrier()
        if ends.reader is not None:
            assert not ends.reader.acquire(6, exactly=True)
            for version in (5, 4, 3):
                assert ends.reader.acquire(version, exactly=True) and ends.pure()
                assert ends.reader.version == version
            with pytest.raises(RuntimeError, match="version 2 was asked for when 5"):
                ends.reader.acquire(2, exactly=True)
        comm.Barrier()
        ends.finish()


def test_a_claim_that_finds_nothing_changes_nothing(comm):
    window = ParameterWindow(None, 0, 4, retain=2)
    reader = ParameterReader(window)
    for version in range(3):
        index = window.claim()
        window.vectors[index][...] = version
        window.announce(index, version)
    for _ in range(2):
        assert reader.acquire(0, exactly=True) and (reader.vector == 0).all()
        assert window.claim() is None
    reader.release()
    assert window.claim() == index - 2
    with pytest.raises(RuntimeError, match="version 0 was asked for when 2"):
        reader.acquire(0, exactly=True)


def test_who_asks_in_vain_holds_nothing(comm, monkeypatch):
    """Also when the version was overwritten between its name and the pin, as it looks to the reader here."""
    window = ParameterWindow(None, 0, 4)
    reader = ParameterReader(window)
    window.announce(window.claim(), 0)
    assert not reader.acquire(1)
    with monkeypatch.context() as patch:
        patch.setattr(window, "version", lambda index: 7)
        assert not reader.acquire(0)
    _, first = window.newest()
    window.announce(window.claim(), 1)
    assert window.claim(keep=set(range(3)) - {first}) == first


@pytest.mark.parametrize(
    ("size", "every_version"), [(SIZES[0], True), (SIZES[1], False), (SIZES[2], False), (SIZES[2], True)]
)
def test_what_other_nodes_get(comm, layout, size, every_version):
    """All versions in order, or the newest in the end and none twice, published faster than they can travel."""
    nodes, roles, transport = layout
    with open_test_world(comm, nodes, comm=transport, deterministic=every_version) as world:
        ends = Ends(world, size, roles)
        last, got = 40, []

        def receive():
            if ends.exchange.poll():
                version, index = ends.receiver._window.newest()
                assert (ends.receiver._window.vectors[index] == version).all()
                got.append(version)
            return got[-1:] == [last]

        receiving = [receive] if ends.receiver is not None else []
        poll_until(world, *ends.publish_until(last), *receiving, progress=[] if receiving else ends.progress)
        meet(world, ends.progress)
        if ends.receiver is not None:
            assert got == (list(range(last + 1)) if every_version else sorted(set(got)))
            assert ends.receiver.messages == len(got)
            assert ends.receiver.bytes == 4 * size * len(got)
        ends.finish()
        nodes_served = {end.dest: end.messages for end in ends.exchange._senders}
        shared = transport["transport"] == "auto"
        learners = [r for r in roles.ranks("learner") if r == 0 or (shared and nodes[r] == nodes[0])]
        for end in ends.exchange._senders:
            entries = len(share(size, len(learners), learners.index(world.rank)))
            assert end.bytes == end.messages * (8 + 4 * entries)
        served = comm.allgather(nodes_served)
        assert all(served[rank] == served[0] for rank in learners)
        received = comm.allgather(ends.receiver.messages if ends.receiver is not None else None)
        assert all(received[dest] == count for dest, count in nodes_served.items())


def test_a_node_that_does_not_listen_does_not_hold_up_the_others(comm):
    """Large vectors, which leave only when they are taken; the last rank polls for nothing until the end."""
    nodes = "abcd"[: comm.size]
    with open_test_world(comm, nodes) as world:
        ends = Ends(world, 100_000, learner_and_actors(comm.size))
        deaf = comm.size - 1 if comm.size > 1 else None
        everyone = comm.Ibarrier() if world.rank == deaf else None
        if everyone is None:
            acting = [lambda: ends.reader.acquire(20)] if ends.reader is not None else []
            poll_until(world, *ends.publish_until(20), *acting, progress=ends.progress)
            everyone = comm.Ibarrier()
        poll_until(world, everyone.Test, progress=[] if world.rank == deaf else ends.progress)
        meet(world, ends.progress)
        if world.rank == deaf:
            poll_until(world, lambda: ends.reader.acquire(20), progress=ends.progress)
            assert ends.pure()
            ends.reader.release()
            assert ends.receiver.messages <= 3  # what was under way, and the newest
        meet(world, ends.progress)
        ends.finish()


@pytest.mark.parametrize("every_version", [False, True])
def test_the_end_comes_at_any_time(comm, layout, every_version):
    """Nothing polled since, everything under way: closed, drained, nothing left (the world looks)."""
    nodes, roles, transport = layout
    with open_test_world(comm, nodes, comm=transport, deterministic=every_version) as world:
        ends = Ends(world, 100_000, roles)
        for _ in range(5 if ends.publisher is not None else 0):
            ends.publish_next()
        if ends.reader is not None:
            ends.reader.acquire(0)
        ends.finish()
        if ends.publisher is not None:
            with pytest.raises(RuntimeError, match="publication is closed"):
                ends.publish_next()


def test_nothing_was_published(comm, layout):
    nodes, roles, transport = layout
    with open_test_world(comm, nodes, comm=transport) as world:
        ends = Ends(world, 10, roles)
        for poll in ends.progress:
            poll()
        assert ends.reader is None or not ends.reader.acquire(0)
        ends.finish()


def test_slices_of_different_versions_are_refused(comm):
    """Sent by hand, because those who send slices cannot. Alone there is no other node."""
    if comm.size == 1:
        return
    with open_test_world(comm) as world:
        sources, last = (0, comm.size - 2), comm.size - 1
        route, tag = world.comm_of(Tag.PARAMETERS), Tag.PARAMETERS
        messages, requests = [], []
        for number in [number for number, source in enumerate(sources) if source == world.rank]:
            messages += [(np.full(1, 3 + number, np.int64), tag), (np.ones(5, np.float32), tag)]
        messages += [(np.zeros(1, np.int64), tag + 1) for source in sources if source == world.rank]
        ready = world.receiver(last, tag) if world.rank == 0 else None
        if ready is not None:
            ready.post(np.zeros(1, np.int64))
            ready.post(np.zeros(1, np.int64))
        for message, tag_of_it in messages:
            requests.append(route.Isend([message.view(np.uint8), MPI.BYTE], last, tag_of_it))
        if world.rank == last:
            receiver = SliceReceiver(world, ParameterWindow(None, 0, 10), sources, 10)

            def refused():
                try:
                    receiver.poll()
                except RuntimeError as error:
                    assert "slices of different parameter versions: [3, 4]" in str(error)
                    return True
                return False

            poll_until(world, refused)
            assert receiver._window.newest()[0] == -1
            receiver._offered = None
            receiver._window.announce(0, 0)  # gives the buffer back
            drain(world, receiver)
        if ready is not None:
            poll_until(world, lambda: ready.drained, progress=[ready.poll])
            ready.cancel()
        poll_until(world, lambda: all([request.Test() for request in requests]))  # noqa: C419


def test_no_room_in_shared_memory(comm, monkeypatch):
    """Then every actor is a node of its own, with memory of its own."""
    monkeypatch.setattr(publish, "fits_in_shared_memory", lambda node, nbytes: False)
    with open_test_world(comm) as world:
        ends = Ends(world, 1000, learner_and_actors(comm.size))
        assert (ends.receiver is not None) == (world.rank > 0)
        acting = [lambda: ends.reader.acquire(9)] if ends.reader is not None else []
        poll_until(world, *ends.publish_until(9), *acting, progress=ends.progress)
        assert ends.reader is None or ends.pure()
        meet(world, ends.progress)
        ends.finish()


def test_a_publication_rings_the_bells_of_those_who_wait_for_it(comm):
    with open_test_world(comm) as world:
        ends = Ends(world, 10, learner_and_actors(comm.size))
        waits = 0 < world.rank < 3
        for version in range(3):
            if waits:
                assert not ends.reader.acquire(version)
            before = world.node.bells.look()
            comm.Barrier()
            if ends.publisher is not None:
                ends.publish_next()
            comm.Barrier()
            assert (world.node.bells.look() != before) == waits
            if ends.reader is not None:
                assert ends.reader.acquire(version)
        comm.Barrier()
        before = world.node.bells.look()
        comm.Barrier()
        if ends.publisher is not None:
            ends.publish_next()
        comm.Barrier()
        assert world.node.bells.look() == before  # all have what they asked for
        ends.finish()


def test_learners_meet_only_where_one_serves_another(comm, layout):
    """And while they wait for each other they serve: the last learner comes when the actors have what it published."""
    nodes, roles, transport = layout
    with open_test_world(comm, nodes, comm=transport) as world:
        ends = Ends(world, 100_000, roles)
        letters = "".join(placement.role[0] for placement in roles.placements)
        serve = {("aab", "lla"), ("aabb", "llaa"), ("abab", "llaa"), ("abba", "lral"), ("aaab", "llla")}
        assert ends.exchange.learners_must_meet == ((nodes, letters) in serve)
        notes = [world.receiver(rank, Tag.TRAJECTORY) for rank in roles.ranks("actor") if world.rank == 0]
        note = world.sender(0, Tag.TRAJECTORY) if ends.reader is not None else None
        for one in notes:
            one.post(np.zeros(1, np.int64))
        if ends.publisher is not None:
            ends.publish_next()
            started = []
        else:
            started = [ends.exchange.meet_learners()]

        def act():
            if ends.reader.acquire(0):
                note.send(np.zeros(1, np.int64))
                return True
            return False

        conditions = [act] if ends.reader is not None else []
        conditions += [lambda one=one: one.poll() is not None for one in notes]
        poll_until(world, *conditions, progress=ends.progress)
        poll_until(world, *(started or [ends.exchange.meet_learners()]), progress=ends.progress)
        if note is not None:
            note.close()
            drain(world, note)
        drain(world, *notes)
        ends.finish()
