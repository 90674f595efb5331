"""Which rank does what in the publication of parameters."""

from hpcrl.comm.publish import NodePart, plan_parts
from hpcrl.comm.ranks import Placement, RankPlan


def plan(**ranks):
    return RankPlan(
        tuple(Placement(rank, role, index) for role, mine in ranks.items() for index, rank in enumerate(mine))
    )


def test_the_node_of_learner_0_comes_first_and_learner_0_writes_there():
    roles = plan(learner=[3, 1], replay=[0, 2], actor=[4, 5])
    parts = plan_parts(roles, [(0, 1, 4), (2, 3, 5)])
    assert parts == [NodePart((2, 3, 5), 3, (5,)), NodePart((0, 1, 4), 0, (4,))]


def test_who_receives_for_a_node():
    roles = plan(learner=[0, 4], replay=[1, 6], actor=[2, 3, 5, 7])
    parts = plan_parts(roles, [(0, 1), (2, 3), (4, 5), (6, 7)])
    assert [part.writer for part in parts] == [0, 2, 4, 6]
    assert [part.readers for part in parts] == [(), (2, 3), (5,), (7,)]


def test_a_node_without_actors_gets_nothing_unless_learner_0_is_there():
    roles = plan(learner=[0, 1], replay=[2], actor=[3])
    parts = plan_parts(roles, [(0,), (1,), (2,), (3,)])
    assert parts == [NodePart((0,), 0, ()), NodePart((3,), 3, (3,))]


def test_every_role_on_one_rank():
    assert plan_parts(plan(learner=[0], replay=[0], actor=[0]), [(0,)]) == [NodePart((0,), 0, (0,))]


def test_no_learners_no_parts():
    assert plan_parts(plan(worker=[0, 1]), [(0, 1)]) == []
