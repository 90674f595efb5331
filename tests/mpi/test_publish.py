import time

import numpy as np
import pytest

from hpcrl.comm.publish import Publisher, Subscriber
from tests.mpi.support import drain, learner_and_actors, meet, open_test_world, poll_until

SIZES = [1, 1000, 100_000]  # from messages that leave at once to messages that wait for their receiver


class Ends:
    """Rank 0 publishes and the others subscribe; alone, it does both."""

    def __init__(self, world, size, *, every_version=False):
        world.plan = learner_and_actors(world.comm.size)
        self.world = world
        self.publisher = Publisher(world, size, every_version=every_version) if world.rank == 0 else None
        self.subscriber = Subscriber(world, size) if world.rank or world.comm.size == 1 else None
        self.progress = [one.poll for one in (self.publisher, self.subscriber) if one is not None]
        if every_version:
            self.progress = [self.publisher.poll] if self.publisher is not None else []
        self.vector = np.full(size, -1, np.float32)
        self.source = np.zeros(size, np.float32)
        self.published = 0

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
            return self.published == last

        return [step] if self.publisher is not None else []

    def finish(self):
        if self.publisher is not None:
            self.publisher.close()
        drain(self.world, *[one for one in (self.publisher, self.subscriber) if one is not None])
        if self.subscriber is not None:
            self.subscriber.close()


@pytest.mark.parametrize("size", SIZES)
def test_a_busy_actor_has_the_newest_version_at_its_next_fetch(comm, size):
    """P73: between its env_steps it only polls while 40 versions are published."""
    with open_test_world(comm) as world:
        ends = Ends(world, size)
        poll_until(world, *ends.publish_until(40), progress=ends.progress)
        for _ in range(3):  # what is under way arrives
            meet(world, ends.progress)
            settled = time.perf_counter() + 0.05
            poll_until(world, lambda end=settled: time.perf_counter() > end, progress=ends.progress)
        if ends.subscriber is not None:
            assert ends.subscriber.fetch(ends.vector, at_least=40)
            assert ends.subscriber.version == 40 and (ends.vector == 40).all()
        ends.finish()


@pytest.mark.parametrize("size", SIZES)
def test_never_a_mixture_and_never_backwards(comm, size):
    with open_test_world(comm) as world:
        ends = Ends(world, size)
        seen = []

        def act():
            before = ends.subscriber.version
            satisfied = ends.subscriber.fetch(ends.vector, at_least=60)
            assert satisfied == (ends.subscriber.version >= 60)
            assert (ends.vector == ends.subscriber.version).all()
            if ends.subscriber.version != before:
                seen.append(ends.subscriber.version)
                time.sleep(0.001 * world.rank)
            return satisfied

        acting = [act] if ends.subscriber is not None else []
        poll_until(world, *ends.publish_until(60), *acting, progress=ends.progress)
        meet(world, ends.progress)
        assert seen == sorted(set(seen))
        assert seen[-1:] == ([60] if acting else [])
        ends.finish()


@pytest.mark.parametrize("size", SIZES)
def test_every_version_in_order_where_it_is_asked_for_exactly(comm, size):
    """The deterministic pipeline: an actor needs version v even where newer ones are here."""
    with open_test_world(comm) as world:
        ends = Ends(world, size, every_version=True)
        wanted = iter(range(1, 31))
        target = next(wanted)
        seen = []

        def act():
            nonlocal target
            while target is not None and ends.subscriber.fetch(ends.vector, at_least=target, exactly=True):
                assert ends.subscriber.version == target and (ends.vector == target).all()
                assert ends.subscriber.fetch(ends.vector, at_least=target, exactly=True)  # again: the same
                seen.append(target)
                target = next(wanted, None)
            return target is None

        acting = [act] if ends.subscriber is not None else []
        poll_until(world, *ends.publish_until(30), *acting, progress=ends.progress)
        meet(world, ends.progress)
        assert seen == (list(range(1, 31)) if acting else [])
        if acting:
            with pytest.raises(RuntimeError, match="version 29 was asked for after version 30"):
                ends.subscriber.fetch(ends.vector, at_least=29, exactly=True)
        ends.finish()


@pytest.mark.parametrize("size", SIZES)
def test_many_versions_that_nobody_reads_take_no_memory(comm, size):
    with open_test_world(comm) as world:
        ends = Ends(world, size)
        for _ in range(200 if ends.publisher is not None else 0):
            ends.publish_next()
            # the newest, one under way to each actor, and one for the next
            most = len(world.plan.ranks("actor")) + 2
            assert len(ends.publisher._users) + len(ends.publisher._free) <= most
        meet(world, ends.progress)
        ends.finish()


def test_an_actor_that_comes_late_gets_what_was_published_before(comm):
    with open_test_world(comm) as world:
        ends = Ends(world, 10)
        if ends.publisher is not None:
            ends.publish_next()
        meet(world)
        acting = (
            [lambda: ends.subscriber.fetch(ends.vector, at_least=1)] if ends.subscriber is not None else []
        )
        poll_until(world, *acting, progress=ends.progress)
        meet(world, ends.progress)
        ends.finish()


def test_nothing_is_published(comm):
    with open_test_world(comm) as world:
        ends = Ends(world, 10)
        if ends.subscriber is not None:
            assert not ends.subscriber.fetch(ends.vector, at_least=0)
            assert ends.subscriber.version == -1 and (ends.vector == -1).all()
        ends.finish()
