"""Ranks on the nodes they are really on, with no made-up map: one node, unless tests/cluster starts the ranks.

It then promises where each rank is in HPCRL_TEST_NODES, as in node1,node1,node2,node2. Where hosts cannot be emulated
it says HPCRL_TEST_FAKED=1, and the same promise becomes the node map that a world is given.
"""

import os
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

from hpcrl.comm.stream import Tag
from tests.mpi.support import drain, open_test_world, poll_until
from tests.mpi.test_reduce import FORMS, check_sum, open_reducer

FAKED = os.environ.get("HPCRL_TEST_FAKED") == "1"


@pytest.fixture
def nodes(comm):
    """Name of the node of each rank."""
    promised = os.environ.get("HPCRL_TEST_NODES")
    return promised.split(",") if promised else [MPI.Get_processor_name()] * comm.size


@contextmanager
def open_real_world(parent, nodes, /, **sections):
    with open_test_world(parent, nodes if FAKED else None, **sections) as world:
        yield world


def test_mpi_sees_the_hosts(comm, nodes):
    """What shares memory by MPI's word is what has the same host name, and nothing else does."""
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    together = shared.allgather(comm.rank)
    shared.Free()
    if FAKED:
        assert together == list(range(comm.size))
        return
    assert comm.allgather(MPI.Get_processor_name()) == nodes
    assert together == [rank for rank in range(comm.size) if nodes[rank] == nodes[comm.rank]]


def test_a_world_has_the_nodes_there_are(comm, nodes):
    with open_real_world(comm, nodes) as world:
        mine = [rank for rank in range(comm.size) if nodes[rank] == nodes[comm.rank]]
        assert [seat["node"] for seat in world.seats] == nodes
        assert [seat["local_rank"] for seat in world.seats] == [
            nodes[:rank].count(nodes[rank]) for rank in range(comm.size)
        ]
        assert list(world.node.ranks) == mine
        assert world.learners.node.allgather(comm.rank) == mine
        assert world.learners.cross.allgather(comm.rank) == [
            rank
            for rank in range(comm.size)
            if nodes[:rank].count(nodes[rank]) == nodes[: comm.rank].count(nodes[comm.rank])
        ]


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_streams_reach_every_rank_inside_and_across(comm, nodes, transport):
    with open_real_world(comm, nodes, comm={"transport": transport}) as world:
        senders = [world.sender(rank, Tag.BATCH) for rank in range(comm.size) if rank != comm.rank]
        receivers = [world.receiver(rank, Tag.BATCH) for rank in range(comm.size) if rank != comm.rank]
        for receiver in receivers:
            receiver.post(np.zeros(100_000, np.int64))
        for sender in senders:
            sender.send(np.full(100_000, comm.rank, np.int64))
        got = {}

        def take(receiver):
            if (buffer := receiver.poll()) is not None:
                got[receiver.source] = (buffer == receiver.source).all()
            return receiver.source in got

        poll_until(world, *[lambda one=one: take(one) for one in receivers])
        assert all(got.values()) and len(got) == comm.size - 1
        for sender in senders:
            sender.close()
        drain(world, *senders, *receivers)


@pytest.mark.parametrize("form", FORMS)
def test_sums_over_the_nodes_there_are(comm, nodes, form):
    with open_reducer(comm, nodes if FAKED else None, form) as reducer:
        for size in (0, 1, comm.size + 1, 1_000_003):
            check_sum(comm, reducer, size, np.float32, seed=size)
