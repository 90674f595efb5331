"""Worlds for tests, with made-up node maps and role plans."""

import os
import time
from contextlib import contextmanager

from mpi4py import MPI

from hpcrl.comm.ranks import Placement, RankPlan
from hpcrl.comm.world import Traffic, open_world
from hpcrl.config import RunConfig

DEADLINE_S = 60.0


def run_config(size, **sections):
    """Every rank a worker; tests that need other roles give the world another plan."""
    values = {
        "name": "toy",
        "scheme": "synchronous",
        "env": {"id": "x", "num_envs": 64},
        "algorithm": {"name": "ppo"},
        "ranks": {"workers": size},
    }
    return RunConfig.parse(values | sections)


def nothing_left(world):
    """No message waits anywhere in a world. Collective over the world."""
    come_together(world.comm)
    comms = [world.comm, *(world._by_class[traffic] for traffic in Traffic)]
    return not any(comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG) for comm in comms)


def together(nodes):
    """Which ranks a node map has on one node, for the ranks there are: equal for maps that are the same here.

    Hosts that are really different (tests/cluster) divide its nodes further.
    """
    hosts = os.environ.get("HPCRL_TEST_NODES", "") if os.environ.get("HPCRL_TEST_FAKED") != "1" else ""
    seats = list(zip(nodes, hosts.split(",") if hosts else nodes, strict=False))[: MPI.COMM_WORLD.size]
    return tuple(seats.index(seat) for seat in seats)


def different(maps):
    """Of node maps, a letter per rank, those that differ for the ranks there are; the first of equal ones."""
    found = {}
    for nodes in maps:
        found.setdefault(together(nodes), nodes)
    return list(found.values())


def come_together(comm):
    """A barrier that leaves the core to the ranks that still work. Collective over `comm`."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


@contextmanager
def open_test_world(parent, nodes=None, /, **sections):
    """A world that is empty and closed afterwards. Collective over `parent`."""
    world = open_world(parent, run_config(parent.size, **sections), 1, nodes)
    yield world
    assert nothing_left(world)
    world.close()


def plan(*roles):
    """A plan from (role, world rank) pairs."""
    seen = {}
    placements = []
    for role, rank in roles:
        placements.append(Placement(rank, role, seen.setdefault(role, 0)))
        seen[role] += 1
    return RankPlan(tuple(placements))


def learner_and_actors(size):
    """Rank 0 learns, all others act; alone it does both."""
    return plan(("learner", 0), *[("actor", rank) for rank in range(1, size)] or [("actor", 0)])


def poll_until(world, *conditions, progress=()):
    """Call every condition in turn until each has come true once, and `progress` all the while.

    Raises TimeoutError instead of hanging.
    """
    left = list(conditions)
    deadline = time.perf_counter() + DEADLINE_S
    world.waiter.reset()
    while left:
        for work in progress:
            work()
        left = [condition for condition in left if not condition()]
        if time.perf_counter() > deadline:
            raise TimeoutError(
                f"rank {world.rank}: {len(left)} of {len(conditions)} conditions did not come true"
            )
        world.waiter.idle()


def meet(world, progress=()):
    """A barrier during which this rank goes on with `progress`. Collective over the world."""
    request = world.comm.Ibarrier()
    poll_until(world, request.Test, progress=progress)


def drain(world, *ends):
    """Poll until every stream, publisher, ... is drained."""
    poll_until(world, *[lambda end=end: end.drained for end in ends])
