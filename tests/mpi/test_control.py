import os
import signal

import pytest

from hpcrl.comm.control import Control
from hpcrl.comm.signals import SIGNALS, SignalFlag
from tests.mpi.support import drain, meet, open_test_world, plan, poll_until
from tests.processes import own_handlers

PLANS = {
    1: [("replay", 0), ("learner", 0), ("actor", 0)],
    2: [("learner", 0), ("actor", 1)],
    3: [("replay", 0), ("learner", 1), ("actor", 2)],
    4: [("replay", 0), ("learner", 1), ("learner", 2), ("actor", 3)],
}


@pytest.fixture(autouse=True)
def handlers():
    with own_handlers():
        yield


class Rank:
    """One rank's part in a run that does nothing but look at the stop."""

    def __init__(self, world, roles):
        world.plan = plan(*roles)
        self.world = world
        self.flag = SignalFlag()
        self.flag.install()
        self.control = Control(world, self.flag)
        self.learners = world.plan.ranks("learner") or world.plan.ranks("worker")
        self.learns = world.rank in self.learners
        self.group = world.comm.Split(0 if self.learns else 1, world.rank)
        self.votes = 0

    def run(self, vote_limit=None):
        """Until the stop is announced; with a limit, until so many votes at the most."""
        if self.learns:
            while not self.vote() and self.votes != vote_limit:
                pass
        if self.world.rank == self.learners[0]:
            self.control.announce_stop()
        poll_until(self.world, lambda: self.control.stopped, progress=[self.control.poll])
        assert self.control.stopped

    def vote(self):
        """Learners agree before anybody acts on a signal."""
        self.votes += 1
        poll_until(self.world, lambda: True, progress=[self.control.poll])
        return self.group.allreduce(self.control.stop_requested) > 0

    def end(self):
        self.control.close()
        poll_until(self.world, lambda: self.control.drained, progress=[self.control.poll])
        self.control.cancel()
        self.group.Free()


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_on_one_rank_of_each_kind_stops_everyone(comm, number):
    for target in range(comm.size):
        with open_test_world(comm) as world:
            rank = Rank(world, PLANS[comm.size])
            comm.Barrier()
            if comm.rank == target:
                os.kill(os.getpid(), number)
            rank.run()
            assert rank.flag.received == (number.name if comm.rank == target else None)
            rank.end()


def test_a_signal_stops_the_synchronous_scheme(comm):
    for target in range(comm.size):
        with open_test_world(comm) as world:
            rank = Rank(world, [("worker", one) for one in range(comm.size)])
            comm.Barrier()
            if comm.rank == target:
                os.kill(os.getpid(), signal.SIGTERM)
            rank.run()
            rank.end()


def test_signals_on_all_ranks_at_once_and_again_and_again(comm):
    with open_test_world(comm) as world:
        rank = Rank(world, PLANS[comm.size])
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        rank.run()
        os.kill(os.getpid(), signal.SIGTERM)
        rank.end()
        assert rank.flag.received == SIGNALS[0].name


def test_without_a_signal_nobody_is_asked_to_stop(comm):
    with open_test_world(comm) as world:
        rank = Rank(world, PLANS[comm.size])
        rank.run(vote_limit=5)
        assert not rank.learns or rank.votes == 5
        assert rank.flag.received is None
        rank.end()


def test_a_signal_during_the_end_is_harmless(comm):
    """It comes after the stop was announced, between the steps of the drain, on every rank."""
    with open_test_world(comm) as world:
        rank = Rank(world, PLANS[comm.size])
        rank.run(vote_limit=1)
        rank.control.close()
        meet(world, [rank.control.poll])
        os.kill(os.getpid(), signal.SIGUSR1)
        rank.control.poll()
        drain(world, rank.control)
        os.kill(os.getpid(), signal.SIGTERM)
        rank.control.poll()
        rank.end()


def test_a_first_signal_after_the_end_is_harmless(comm):
    """The streams are closed by then: there is nobody left to ask."""
    with open_test_world(comm) as world:
        rank = Rank(world, PLANS[comm.size])
        rank.run(vote_limit=1)
        rank.control.close()
        drain(world, rank.control)
        os.kill(os.getpid(), signal.SIGTERM)
        rank.control.poll()
        assert rank.flag.received == "SIGTERM"
        rank.end()


def test_a_learner_that_waits_hears_of_a_signal_to_any_rank(comm):
    """Without a vote: one that waits for its batch must come to the next vote, or the others wait there for ever."""
    for target in range(comm.size):
        with open_test_world(comm) as world:
            rank = Rank(world, PLANS[comm.size])
            comm.Barrier()
            if comm.rank == target:
                os.kill(os.getpid(), signal.SIGTERM)
            if rank.learns:
                poll_until(world, lambda rank=rank: rank.control.stop_requested)
                where = "" if comm.rank == target else f" on rank {target}"
                assert rank.control.stop_cause == f"SIGTERM{where}"
            meet(world, [rank.control.poll])
            rank.run()
            rank.end()


def test_learner_0_hears_of_every_part_of_a_checkpoint(comm):
    """Also of many, one after the other, and of a signal between them; and all hear what is to be saved at the end."""
    with open_test_world(comm) as world:
        rank = Rank(world, PLANS[comm.size])
        control, root = rank.control, world.plan.ranks("learner")[0]
        digests = {update: bytes([update, comm.rank] * 16) for update in range(10)}
        heard = []
        if comm.rank != root:
            for update, digest in digests.items():
                control.send_part(update, digest, final=update % 2 == 1)
                if update == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
        else:
            with pytest.raises(RuntimeError, match="need not tell itself"):
                control.send_part(0, bytes(32), final=False)
        expected = 10 * (comm.size - 1) if comm.rank == root else 0
        poll_until(world, lambda: heard.extend(control.take_parts()) or len(heard) == expected)
        assert sorted(heard) == sorted(
            (other, update, update % 2 == 1, bytes([update, other] * 16))
            for other in range(comm.size)
            for update in range(10)
            if other != comm.rank == root
        )
        meet(world, [control.poll])
        if comm.rank == root:
            control.announce_stop(save_at=7, code=2)
        poll_until(world, lambda: control.stopped, progress=[control.poll])
        assert (control.save_at, control.code) == (7, 2)
        rank.end()


def test_the_end_of_the_allocation_stops_everyone(comm):
    """Only learner 0 looks at the clock."""
    with open_test_world(comm) as world:
        rank = Rank(world, PLANS[comm.size])
        rank.control.time_is_up = lambda: True
        rank.run()
        assert rank.control.save_at is None and rank.control.code == 0
        if rank.learns:
            root = world.plan.ranks("learner")[0]
            where = "" if comm.rank == root else f" on rank {root}"
            poll_until(world, lambda: rank.control.stop_requested)
            assert rank.control.stop_cause == f"the end of the allocation{where}"
            assert rank.control.stop_is_of_the_clock
        rank.end()


def test_the_score_comes_before_the_part_and_nothing_is_no_score(comm):
    with open_test_world(comm) as world:
        rank = Rank(world, PLANS[comm.size])
        root = rank.learners[0]
        teller = next((other for other in range(comm.size) if other != root), None)
        for score in (-2.5, None):
            if world.rank == teller:
                rank.control.send_score(score)
                rank.control.send_part(3, bytes(32), final=False)
            if world.rank == root and teller is not None:
                poll_until(world, lambda: len(rank.control.take_parts()) == 1)
                assert rank.control.score == score
            meet(world)
        rank.run(vote_limit=1)
        rank.end()
