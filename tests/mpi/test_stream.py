import hashlib
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest

from hpcrl.comm.stream import MessageReceiver, MessageSender, Tag
from hpcrl.data.specs import Field, TrajectorySpec
from hpcrl.data.trajectory import TrajectoryLayout
from tests.mpi.support import drain, open_test_world, poll_until

LIMIT = {"comm": {"chunk_bytes": 1024}}


def neighbors(world):
    """(next, previous) rank on a ring; alone a rank is its own neighbor."""
    return (world.rank + 1) % world.comm.size, (world.rank - 1) % world.comm.size


def payload(rank, number, nbytes):
    return np.random.default_rng([rank, number]).integers(0, 256, nbytes, np.uint8)


class CountingComm:
    """A communicator that counts the messages started on it."""

    def __init__(self, comm):
        self._comm = comm
        self.started = Counter()

    def Isend(self, *arguments):
        self.started["sent"] += 1
        return self._comm.Isend(*arguments)

    def Irecv(self, *arguments):
        self.started["posted"] += 1
        return self._comm.Irecv(*arguments)


@pytest.mark.parametrize(
    ("nbytes", "messages"), [(0, 1), (1, 1), (1023, 1), (1024, 1), (1025, 2), (10 * 1024 + 7, 11)]
)
def test_messages_around_the_chunk_limit(comm, nbytes, messages):
    with open_test_world(comm, **LIMIT) as world:
        after, before = neighbors(world)
        counting = CountingComm(world.comm)
        sender = MessageSender(counting, after, Tag.BATCH, 1024)
        receiver = MessageReceiver(counting, before, Tag.BATCH, 1024)
        counting.started.clear()  # the end note
        got = []
        for _ in range(3):
            receiver.post(np.zeros(nbytes, np.uint8))
        for number in range(3):
            sender.send(payload(world.rank, number, nbytes))

        def take():
            while (buffer := receiver.poll()) is not None:
                got.append(hashlib.sha256(buffer).hexdigest())
            return len(got) == 3

        poll_until(world, take, lambda: sender.poll() == 0)
        assert counting.started == {"sent": 3 * messages, "posted": 3 * messages}
        assert got == [hashlib.sha256(payload(before, number, nbytes)).hexdigest() for number in range(3)]
        assert (sender.messages, sender.bytes) == (receiver.messages, receiver.bytes) == (3, 3 * nbytes)
        sender.close()
        drain(world, sender, receiver)


@pytest.mark.parametrize("entries", [16, 100_000])
def test_a_slow_receiver_sees_every_message_in_order_and_whole(comm, entries):
    """P03: a buffer is filled again only after it left; here it is overwritten the moment it is free."""
    with open_test_world(comm) as world:
        after, before = neighbors(world)
        sender, receiver = world.sender(after, Tag.TRAJECTORY), world.receiver(before, Tag.TRAJECTORY)
        slots = [np.zeros(entries, np.int64) for _ in range(3)]
        free = list(slots)
        for _ in range(2):
            receiver.post(np.zeros(entries, np.int64))
        count, sent, got = 30, 0, []

        def give():
            nonlocal sent
            pending = sender.poll()
            assert pending + len(free) == len(slots)
            if sent < count and free:
                slot = free.pop(0)
                slot[...] = sent
                sent += 1

                def left(slot=slot):
                    slot[...] = -1
                    free.append(slot)

                sender.send(slot, on_sent=left)
            return sent == count

        def take():
            buffer = receiver.poll()
            if buffer is not None:
                time.sleep(0.004)
                assert (buffer == buffer[0]).all()
                got.append(int(buffer[0]))
                buffer[...] = -2
                receiver.post(buffer)
            return len(got) == count

        poll_until(world, give, take, lambda: sent == count and sender.poll() == 0)
        assert got == list(range(count))
        assert len(free) == 3
        sender.close()
        drain(world, sender, receiver)
        receiver.cancel()


def test_nothing_is_handed_out_before_it_is_complete(comm):
    """A message of many parts arrives whole; buffers are poisoned before."""
    with open_test_world(comm, **LIMIT) as world:
        after, before = neighbors(world)
        sender, receiver = world.sender(after, Tag.TRAJECTORY), world.receiver(before, Tag.TRAJECTORY)
        layout = TrajectoryLayout(
            TrajectorySpec(
                unroll_length=50,
                num_envs=20,
                fields=(
                    Field(name="obs", dtype="float32", shape=(7,), extra_step=True),
                    Field(name="valid", dtype="bool"),
                    Field(name="parameter_version", dtype="int32"),
                ),
            )
        )
        slot = layout.allocate(1)[0]
        trajectory = layout.begin(slot, attempt=1, version=5, actor=world.rank, grant=9, envs=range(20))
        trajectory.fields["obs"][...] = np.arange(51 * 20 * 7).reshape(51, 20, 7) + world.rank
        trajectory.fields["valid"][...] = True
        trajectory.seal(checksum=True)
        receiver.post(layout.allocate(1, poison=True)[0])
        sender.send(slot, on_sent=partial(slot.fill, 0xFF))
        found = []
        poll_until(
            world, lambda: found.append(receiver.poll()) or found[-1] is not None, lambda: sender.poll() == 0
        )
        received = layout.check(found[-1], 1)
        assert int(received.header["actor"]) == before and int(received.header["valid_steps"]) == 1000
        assert (received.fields["obs"].ravel() == np.arange(51 * 20 * 7) + before).all()
        assert np.isnan(layout.view(slot).fields["obs"]).all()
        sender.close()
        drain(world, sender, receiver)


def test_trajectories_of_1_to_5000_steps_in_random_order(comm):
    """P02: every rank sends to every rank, sizes in another order on every stream."""
    with open_test_world(comm, **LIMIT) as world:
        size = world.comm.size
        others = [rank for rank in range(size) if rank != world.rank] or [world.rank]

        def steps_of(source, dest):
            return np.random.default_rng([source, dest]).permutation(
                np.concatenate([[1, 2, 255, 256, 257, 5000], np.arange(7, 5000, 167)])
            )

        def steps_payload(source, number, steps):
            return payload(source, number, 4 * steps).view(np.int32)

        senders = {rank: world.sender(rank, Tag.TRAJECTORY) for rank in others}
        receivers = {rank: world.receiver(rank, Tag.TRAJECTORY) for rank in others}
        posted = dict.fromkeys(others, 0)
        sent = dict.fromkeys(others, 0)
        correct = dict.fromkeys(others, 0)

        def work(rank):
            outgoing, incoming = steps_of(world.rank, rank), steps_of(rank, world.rank)
            while posted[rank] < min(correct[rank] + 3, len(incoming)):
                receivers[rank].post(np.zeros(incoming[posted[rank]], np.int32))
                posted[rank] += 1
            if senders[rank].poll() < 2 and sent[rank] < len(outgoing):
                senders[rank].send(steps_payload(world.rank, sent[rank], outgoing[sent[rank]]))
                sent[rank] += 1
            buffer = receivers[rank].poll()
            if buffer is not None:
                assert np.array_equal(buffer, steps_payload(rank, correct[rank], incoming[correct[rank]]))
                correct[rank] += 1
            return sent[rank] == len(outgoing) and correct[rank] == len(incoming)

        poll_until(world, *[partial(work, rank) for rank in others])
        for sender in senders.values():
            sender.close()
        drain(world, *senders.values(), *receivers.values())
        for rank in others:
            assert senders[rank].bytes == 4 * int(steps_of(world.rank, rank).sum())
            assert receivers[rank].bytes == 4 * int(steps_of(rank, world.rank).sum())


class TestTheEnd:
    def test_drained_only_when_all_has_come(self, comm):
        with open_test_world(comm) as world:
            after, before = neighbors(world)
            sender, receiver = world.sender(after, Tag.GRANT), world.receiver(before, Tag.GRANT)
            for _ in range(4):
                receiver.post(np.zeros(2, np.int64))
            for number in range(3):
                sender.send(np.full(2, number, np.int64))
            poll_until(world, lambda: sender.poll() == 0)
            assert not sender.drained and not receiver.drained
            with pytest.raises(RuntimeError, match=f"stream GRANT from rank {before} still expects messages"):
                receiver.cancel()
            sender.close()
            sender.close()  # again does nothing
            got = []

            def take_one_at_a_time():
                assert not receiver.drained or len(got) == 3
                if (buffer := receiver.poll()) is not None:
                    got.append(int(buffer[0]))
                return len(got) == 3

            poll_until(world, take_one_at_a_time)
            assert got == [0, 1, 2]
            drain(world, sender, receiver)
            assert receiver.posted == 1
            receiver.cancel()
            assert receiver.posted == 0

    def test_nothing_may_be_sent_after_the_end(self, comm):
        with open_test_world(comm) as world:
            after, before = neighbors(world)
            sender, receiver = world.sender(after, Tag.RECORDS), world.receiver(before, Tag.RECORDS)
            sender.close()
            with pytest.raises(RuntimeError, match=f"stream RECORDS to rank {after} is closed"):
                sender.send(np.zeros(1))
            drain(world, sender, receiver)

    def test_streams_that_were_never_used(self, comm):
        with open_test_world(comm) as world:
            for tag in Tag:
                after, before = neighbors(world)
                sender, receiver = world.sender(after, tag), world.receiver(before, tag)
                for _ in range(3):
                    receiver.post(np.zeros(5000))
                sender.close()
                drain(world, sender, receiver)
                receiver.cancel()

    def test_a_world_is_not_closed_over_messages_in_flight(self, comm):
        with open_test_world(comm) as world:
            after, before = neighbors(world)
            sender, receiver = world.sender(after, Tag.STOP), world.receiver(before, Tag.STOP)
            receiver.post(np.zeros(1))
            with pytest.raises(RuntimeError, match=r"messages in flight on streams \['STOP'\]"):
                world.close()
            sender.send(np.ones(1))
            sender.close()
            poll_until(world, lambda: receiver.poll() is not None)
            drain(world, sender, receiver)

    def test_streams_of_different_classes_and_tags_do_not_meet(self, comm):
        with open_test_world(comm) as world:
            after, before = neighbors(world)
            senders = {tag: world.sender(after, tag) for tag in Tag}
            receivers = {tag: world.receiver(before, tag) for tag in Tag}
            for tag in Tag:
                receivers[tag].post(np.zeros(1, np.int64))
            for tag in reversed(Tag):
                senders[tag].send(np.array([tag], np.int64))
            got = {}

            def take():
                for tag in Tag:
                    if (buffer := receivers[tag].poll()) is not None:
                        got[tag] = int(buffer[0])
                return len(got) == len(Tag)

            poll_until(world, take)
            assert got == {tag: int(tag) for tag in Tag}
            for sender in senders.values():
                sender.close()
            drain(world, *senders.values(), *receivers.values())
