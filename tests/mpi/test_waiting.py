import time

import numpy as np
import pytest

from hpcrl.comm.stream import Tag
from hpcrl.launch.board import Board
from hpcrl.launch.rank import _agree
from tests.mpi.support import come_together, drain, open_test_world, poll_until


def cpu_share(world, receiver, seconds):
    """CPU seconds per second of a rank that polls a stream on which nothing comes."""
    start, cpu = time.perf_counter(), time.process_time()
    end = start + seconds

    def nothing_or_time_over():
        assert receiver.poll() is None
        return time.perf_counter() > end

    world.waiter.until(nothing_or_time_over)
    return (time.process_time() - cpu) / (time.perf_counter() - start)


@pytest.fixture
def shares(comm):
    """Share of a core that each waiting mode takes on this rank, while all others wait too."""
    found = {}
    for mode, seconds in (("polite", 2.0), ("spin", 0.3)):
        with open_test_world(comm, comm={"wait": mode}) as world:
            sender = world.sender((comm.rank + 1) % comm.size, Tag.TRAJECTORY)
            receiver = world.receiver((comm.rank - 1) % comm.size, Tag.TRAJECTORY)
            receiver.post(np.zeros(10_000))
            found[mode] = cpu_share(world, receiver, seconds)
            sender.close()
            drain(world, receiver, sender)
            receiver.cancel()
    return found


def test_an_idle_rank_leaves_its_core_to_others(shares):
    """P04."""
    assert shares["polite"] < 0.10
    assert shares["spin"] > 2 * shares["polite"]


def test_ranks_that_wait_at_the_start_for_what_another_makes_leave_the_cores_to_it(comm):
    with open_test_world(comm) as world:
        come_together(comm)
        cpu = time.process_time()
        made = _agree(world, comm.size - 1, lambda: time.sleep(1.0) or "it", "making it", Board())
        assert made == "it" and time.process_time() - cpu < 0.3


def test_a_message_is_seen_soon_in_polite_mode(comm):
    """From the longest sleep, an answer comes within a few of them."""
    with open_test_world(comm) as world:
        sender = world.sender((comm.rank + 1) % comm.size, Tag.GRANT)
        receiver = world.receiver((comm.rank - 1) % comm.size, Tag.GRANT)
        for _ in range(20):
            receiver.post(np.zeros(1))
            time.sleep(0.002)
            sender.send(np.ones(1))
            poll_until(world, lambda: receiver.poll() is not None, lambda: sender.poll() == 0)
        sender.close()
        drain(world, sender, receiver)
