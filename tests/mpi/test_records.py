import numpy as np

from hpcrl.comm.stream import Tag
from hpcrl.roles.records import RecordReceiver, RecordSender
from hpcrl.roles.result_writer import Marks
from hpcrl.storage import TABLES
from tests.mpi.support import drain, open_test_world, poll_until

BLOCK_BYTES = 64 * 1024


class Collected:
    """What the writer was given, copied at once: the rows belong to a block that is used again."""

    def __init__(self):
        self.rows = {name: [] for name in TABLES}

    def __call__(self, table, rows):
        assert rows.dtype == TABLES[table].dtype
        self.rows[table].append(rows.copy())

    def table(self, name):
        return np.concatenate([TABLES[name].empty(), *self.rows[name]])


def rows_of(table, rank, count):
    """Rows whose every byte depends on rank and place."""
    dtype = TABLES[table].dtype
    data = np.random.default_rng([rank, count, len(table)]).integers(
        32, 127, count * dtype.itemsize, np.uint8
    )
    rows = data.view(dtype)
    for name in dtype.names:
        if dtype[name].kind == "b":
            rows[name] = data[: len(rows)] % 2
    return rows


def exchange(comm, give):
    """What the writer has after every rank gave its rows: `give(rank, add)`."""
    with open_test_world(comm) as world:
        collected = Collected()
        if world.rank == world.plan.writer:
            receiver = RecordReceiver(world, collected)
            give(world.rank, collected)  # the writer writes its own rows itself
            drain(world, receiver)
            receiver.close()
        else:
            sender = RecordSender(world)
            give(world.rank, sender.add)
            drain(world, sender)
    return collected


def test_rows_of_every_table_arrive_exactly_once(comm):
    sizes = (0, 1, 7, 300)

    def give(rank, add):
        for count in sizes:
            for table in TABLES:
                add(table, rows_of(table, rank, count + rank))

    collected = exchange(comm, give)
    if comm.rank == 0:
        for table in TABLES:
            expected = [rows_of(table, rank, count + rank) for rank in range(comm.size) for count in sizes]
            assert sorted(collected.table(table).tolist(), key=repr) == sorted(
                np.concatenate(expected).tolist(), key=repr
            )


def test_more_rows_than_a_block_holds_keep_their_order(comm):
    most = BLOCK_BYTES // TABLES["episodes"].dtype.itemsize

    def give(rank, add):
        rows = TABLES["episodes"].rows(
            5 * most + 3, env_index=np.arange(5 * most + 3), actor=rank, truncated=False, episode_return=rank
        )
        add("episodes", rows)

    collected = exchange(comm, give)
    if comm.rank == 0:
        rows = collected.table("episodes")
        for rank in range(comm.size):
            assert np.array_equal(rows["env_index"][rows["actor"] == rank], np.arange(5 * most + 3))
        assert all(
            len(block) * rows.dtype.itemsize <= BLOCK_BYTES for block in collected.rows["episodes"][1:]
        )


def test_rows_may_change_after_they_were_handed_over(comm):
    def give(rank, add):
        rows = TABLES["lag"].rows(3, update=0, lag=rank, env_steps=0)
        for update in range(200):
            rows["update"] = update
            add("lag", rows)

    collected = exchange(comm, give)
    if comm.rank == 0:
        rows = collected.table("lag")
        for rank in range(comm.size):
            assert np.array_equal(rows["update"][rows["lag"] == rank], np.repeat(np.arange(200), 3))


def test_no_rows_at_all(comm):
    collected = exchange(comm, lambda rank, add: add("events", TABLES["events"].empty()))
    assert all(len(collected.table(table)) == 0 for table in TABLES)


def test_a_rank_that_never_waits_for_the_writer(comm):
    """The writer looks only after everybody has handed over; memory holds the rest."""
    with open_test_world(comm) as world:
        collected = Collected()
        count = 500
        writes = world.rank == world.plan.writer
        if writes:
            receiver = RecordReceiver(world, collected)
        else:
            sender = RecordSender(world)
            for number in range(count):
                sender.add("events", TABLES["events"].row(kind="tick", count=number, world_rank=world.rank))
        comm.Barrier()
        if writes:
            poll_until(world, lambda: receiver.drained)
            receiver.close()
            rows = collected.table("events")
            for rank in range(1, comm.size):
                assert np.array_equal(rows["count"][rows["world_rank"] == rank], np.arange(count))
        else:
            drain(world, sender)


def test_rows_are_gathered_into_few_messages(comm):
    with open_test_world(comm) as world:
        if world.rank == world.plan.writer:
            receiver = RecordReceiver(world, Collected())
            drain(world, receiver)
            receiver.close()
            messages = [stream.messages for stream in world.receivers if stream.tag == Tag.RECORDS]
            assert len(messages) == world.comm.size - 1
            assert all(1 <= count <= 50 for count in messages), messages
        else:
            sender = RecordSender(world)
            for index in range(500):
                sender.add("events", rows_of("events", world.rank, 1 + index % 2))
            drain(world, sender)


def test_a_single_row_does_not_wait_for_others_for_long(comm):
    with open_test_world(comm) as world:
        collected = Collected()
        if world.rank == world.plan.writer:
            receiver = RecordReceiver(world, collected)
            poll_until(
                world, lambda: len(collected.table("events")) == comm.size - 1, progress=(receiver.poll,)
            )
            comm.Barrier()
            drain(world, receiver)
            receiver.close()
        else:
            sender = RecordSender(world)
            sender.add("events", rows_of("events", world.rank, 1))
            poll_until(world, lambda: sender._sender.messages == 1, progress=(sender.poll,))
            comm.Barrier()
            drain(world, sender)


def test_notes_come_at_once_between_rows_and_not_after_the_end(comm):
    with open_test_world(comm) as world:
        collected, notes = Collected(), []

        def take_note(rank, text):
            notes.append((rank, text))
            return text == ""

        if world.rank == world.plan.writer:
            receiver = RecordReceiver(world, collected, take_note)
            progress = []
            poll_until(
                world,
                lambda: len(notes) == 2 * (comm.size - 1),
                progress=(lambda: progress.append(receiver.poll()),),
            )
            drain(world, receiver)
            receiver.close()
            assert sorted(notes) == sorted(
                (rank, text) for rank in range(comm.size) if rank != world.rank for text in ("", "ä" * 10)
            )
            assert sum(len(rows) for rows in collected.rows["updates"]) == comm.size - 1
        else:
            sender = RecordSender(world)
            sender.add("updates", rows_of("updates", world.rank, 1))
            assert sender.note("")
            poll_until(world, lambda: sender.note("ä" * 10), progress=(sender.poll,))
            drain(world, sender)
            assert not sender.note("too late")


def test_signs_of_work_are_told_apart_from_rows(comm):
    with open_test_world(comm) as world:
        if world.rank == world.plan.writer:
            took = []
            receiver = RecordReceiver(world, Collected(), lambda rank, text: not took.append((rank, text)))
            drain(world, receiver)
            receiver.close()
            others = [rank for rank in range(world.comm.size) if rank != world.rank]
            assert sorted(took) == sorted((rank, "") for rank in others for _ in range(2))
        else:
            sender = RecordSender(world)
            sender.add("events", rows_of("events", world.rank, 3))
            for _ in range(2):
                poll_until(world, sender.sign)
            drain(world, sender)
            assert not sender.sign(), "it has closed"


def test_a_mark_comes_after_every_row_before_it(comm):
    """At once, though no block is full and the row is young; from every learner before they are brought to disk."""
    with open_test_world(comm) as world:
        collected, marked, done = Collected(), [], []
        others = [rank for rank in range(comm.size) if rank != world.plan.writer]
        if world.rank == world.plan.writer:
            marks = Marks(others, flush=lambda: not done.append("flush"), tell=done.append)

            def take(rank, number):
                rows = collected.table("events")
                marked.append((rank, number, int((rows["world_rank"] == rank).sum())))
                marks.take(rank, number)

            receiver = RecordReceiver(world, collected, take_mark=take)
            drain(world, receiver)
            receiver.close()
            assert sorted(marked) == [
                (rank, number, number + rank) for rank in others for number in (3, 1000)
            ]
            assert done == (["flush", 3, "flush", 1000] if others else [])
        else:
            sender = RecordSender(world)
            sender.add("events", TABLES["events"].rows(3 + world.rank, kind="tick", world_rank=world.rank))
            sender.mark(3)
            sender.add(
                "events", TABLES["events"].rows(997, kind="tick", world_rank=world.rank)
            )  # some blocks
            sender.mark(1000)
            drain(world, sender)
