import os

import pytest
from mpi4py import MPI

from hpcrl.comm.world import Traffic, open_world
from hpcrl.config import ConfigError
from tests.mpi.support import different, open_test_world, run_config

MAPS = ["aaaa", "aabb", "abab", "aaab", "abbb", "abcd", "aabc", "abba"]


def pipeline(size):
    return run_config(size, scheme="pipeline", ranks={"actors": 1, "replay": 1, "learners": max(size - 2, 1)})


def test_every_traffic_class_has_its_own_communicator(comm):
    with open_test_world(comm) as world:
        comms = [comm, world.comm, *[world._by_class[traffic] for traffic in Traffic]]
        for one in comms:
            assert one.rank == comm.rank and one.size == comm.size
            others = [other for other in comms if other is not one]
            assert all(MPI.Comm.Compare(one, other) == MPI.CONGRUENT for other in others)


def test_seats_tell_where_every_rank_is(comm):
    nodes = "abab"[: comm.size]
    with open_test_world(comm, nodes) as world:
        assert [seat["node"] for seat in world.seats] == list(nodes)
        assert [seat["local_rank"] for seat in world.seats] == [0, 0, 1, 1][: comm.size]
        assert world.seats[comm.rank]["pid"] == os.getpid()
        assert world.seats[comm.rank]["cores"] == sorted(os.sched_getaffinity(0))
        assert len({seat["pid"] for seat in world.seats}) == comm.size
        everyone = comm.allgather(world.seats)
        assert all(seats == everyone[0] for seats in everyone)


def test_without_a_map_the_ranks_share_this_node(comm):
    with open_test_world(comm) as world:
        assert {seat["node"] for seat in world.seats} == {MPI.Get_processor_name()}
        assert world.learners.node.size == comm.size and world.learners.cross.size == 1


@pytest.mark.parametrize("nodes", different(MAPS))
def test_learner_communicators_follow_the_nodes(comm, nodes):
    nodes = nodes[: comm.size]
    with open_test_world(comm, nodes) as world:
        learners = world.learners
        mine = nodes[comm.rank]
        assert (learners.group.rank, learners.group.size) == (comm.rank, comm.size)
        assert learners.node.size == nodes.count(mine)
        assert learners.node.rank == nodes[: comm.rank].count(mine)
        assert set(learners.node.allgather(mine)) == {mine}
        across = learners.cross.allgather((learners.node.rank, mine))
        assert {place for place, _ in across} == {learners.node.rank}
        assert sorted(node for _, node in across) == sorted(
            node for node in set(nodes) if nodes.count(node) > learners.node.rank
        )


def test_pipeline_or_refusal(comm):
    config = pipeline(comm.size) if comm.size != 2 else pipeline(3)
    if comm.size == 2:
        with pytest.raises(ConfigError, match="2 ranks were started"):
            open_world(comm.Dup(), config, 1)
        return
    world = open_world(comm, config, 1)
    roles = [placement.role for placement in world.placements]
    assert roles == (["replay", "learner", "actor"] if comm.size == 1 else roles[:1])
    assert (world.learners is not None) == ("learner" in roles)
    assert comm.allreduce(len(roles)) == max(comm.size, 3)
    if world.learners is not None:
        assert world.learners.group.size == len(world.plan.ranks("learner"))
        assert world.learners.group.rank == world.plan.ranks("learner").index(comm.rank)
    assert world.worst_exit_code(0) == 0
    world.close()


@pytest.mark.parametrize("code", [0, 2, 3, 4, 75])
def test_worst_exit_code_is_everybodys(comm, code):
    with open_test_world(comm) as world:
        for rank in range(comm.size):
            assert world.worst_exit_code(code if comm.rank == rank else 0) == code


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(comm):
    with open_test_world(comm) as world:
        last = comm.size - 1
        if comm.rank != last:
            with pytest.raises(TimeoutError, match=rf"rank {comm.rank}: not all ranks reached the end"):
                world.worst_exit_code(0, timeout_s=0.05)
        comm.Barrier()
        if comm.rank == last:
            world.worst_exit_code(0)
        for request, *_ in world._abandoned:
            request.Wait()
