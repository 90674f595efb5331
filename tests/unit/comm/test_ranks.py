import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.comm.ranks import fit, plan_ranks, resize, share
from hpcrl.config import ConfigError, RunConfig


def pipeline(actors, replay=1, learners=1, **algorithm):
    return RunConfig.parse(
        {
            "name": "toy",
            "env": {"id": "x", "num_envs": 1000},
            "algorithm": {"name": "ppo"} | algorithm,
            "ranks": {"actors": actors, "replay": replay, "learners": learners},
        }
    )


def synchronous(workers):
    return RunConfig.parse(
        {
            "name": "toy",
            "scheme": "synchronous",
            "env": {"id": "x", "num_envs": 1000},
            "algorithm": {"name": "ppo"},
            "ranks": {"workers": workers},
        }
    )


@st.composite
def pipelines(draw):
    replay = draw(st.integers(1, 6))
    return pipeline(draw(st.integers(replay, 40)), replay, draw(st.integers(1, 12)))


REQUESTS = pipelines() | st.builds(synchronous, st.integers(1, 64))
NODE_MAPS = st.lists(st.sampled_from("abcde"), min_size=1, max_size=64)


def size_named(text):
    return int(re.search(r"use at least (\d+) ranks", text).group(1))


@settings(max_examples=200, deadline=None)
@given(REQUESTS, NODE_MAPS)
def test_each_rank_has_exactly_one_role_or_the_world_is_refused(config, nodes):
    size = len(nodes)
    try:
        sized = resize(config, size)
    except ConfigError as error:
        smallest = size_named(str(error))
        assert size < smallest
        plan_ranks(resize(config, smallest), ["a"] * smallest)
        return
    plan = plan_ranks(sized, nodes)
    counts = sized.ranks
    if sized.scheme == "synchronous":
        wanted = {"actor": 0, "replay": 0, "learner": 0, "worker": size}
    else:
        wanted = {"actor": counts.actors, "replay": counts.replay, "learner": counts.learners, "worker": 0}
        assert all(wanted[role] for role in ("actor", "replay", "learner"))
    for role, count in wanted.items():
        own = [placement for placement in plan.placements if placement.role == role]
        assert [placement.role_rank for placement in sorted(own, key=lambda p: p.role_rank)] == list(
            range(count)
        )
        assert plan.ranks(role) == [placement.world_rank for placement in own]
    per_rank = [len(plan.of_rank(rank)) for rank in range(size)]
    assert per_rank == ([len(plan.placements)] if size == 1 else [1] * size)
    assert plan.writer in range(size) and (size == 1 or plan.writer not in plan.ranks("learner"))
    assert plan_ranks(sized, nodes) == plan


@settings(deadline=None)
@given(REQUESTS, st.integers(-1, 64))
def test_the_smallest_world_named_is_the_smallest(config, size):
    try:
        assert plan_ranks(resize(config, size), ["a"] * size)
    except ConfigError as error:
        smallest = size_named(str(error))
        assert resize(config, smallest).world_size == smallest
        assert plan_ranks(resize(config, 1), ["a"])
        for smaller in range(-1, smallest):
            if smaller != 1:
                with pytest.raises(ConfigError, match=f"use at least {smallest} ranks"):
                    resize(config, smaller)


@settings(deadline=None)
@given(REQUESTS, st.integers(1, 64))
def test_a_world_that_is_there_fits_or_is_refused_with_a_repair_that_works(config, size):
    if size in (1, config.world_size):
        assert plan_ranks(fit(config, size), ["a"] * size)
        return
    with pytest.raises(ConfigError) as caught:
        fit(config, size)
    text = str(caught.value)
    assert f"{size} ranks were started" in text and f"start {config.world_size} ranks" in text
    repair = re.search(r"set (ranks\.\w+=\d+)", text)
    if repair is not None:
        assert fit(config.with_overrides([repair.group(1)]), size).world_size == size
    else:
        assert size < size_named(text)


def test_every_size_up_to_64_of_the_plainest_request():
    for size in range(1, 65):
        for config in (pipeline(1), synchronous(1)):
            if size == 2 and config.scheme == "pipeline":
                with pytest.raises(ConfigError, match="at least 3 ranks, or 1"):
                    resize(config, size)
            else:
                assert len(plan_ranks(resize(config, size), ["a"] * size).placements) >= size


def test_resize_changes_only_the_actors_or_the_workers():
    before = pipeline(4, 2, 3).ranks
    assert resize(pipeline(4, 2, 3), 8).ranks == before.with_overrides(["actors=3"])
    assert resize(synchronous(2), 5).ranks.workers == 5


def test_one_rank_has_every_role():
    plan = plan_ranks(pipeline(4, 2, 3), ["a"])
    assert [(placement.role, placement.role_rank) for placement in plan.of_rank(0)] == [
        ("replay", 0),
        ("learner", 0),
        ("actor", 0),
    ]


def test_what_a_resize_makes_impossible_is_told():
    few = RunConfig.parse(pipeline(2).to_dict() | {"env": {"id": "x", "num_envs": 3}})
    with pytest.raises(ConfigError, match=r"env\.num_envs=3"):
        resize(few, 6)


class TestPlacement:
    def test_shards_sit_beside_learners_on_the_first_nodes(self):
        nodes = list("aaabbbccc")
        plan = plan_ranks(pipeline(5, 2, 2), nodes)
        assert (plan.ranks("replay"), plan.ranks("learner"), plan.ranks("actor")) == (
            [0, 2],
            [1, 3],
            [4, 5, 6, 7, 8],
        )

    def test_ranks_dealt_out_over_nodes_are_taken_node_by_node(self):
        plan = plan_ranks(pipeline(3, 1, 2), list("bababa"))
        assert (plan.ranks("replay"), plan.ranks("learner"), plan.ranks("actor")) == ([0], [2, 4], [1, 3, 5])

    def test_workers_keep_their_rank(self):
        assert plan_ranks(synchronous(4), list("abab")).ranks("worker") == [0, 1, 2, 3]

    @given(pipelines(), st.data())
    def test_ranks_of_a_role_on_one_node_are_neighbors(self, config, data):
        size = config.world_size
        nodes = data.draw(st.lists(st.sampled_from("abcd"), min_size=size, max_size=size))
        plan = plan_ranks(config, nodes)
        for role in ("actor", "replay", "learner"):
            order = [nodes[rank] for rank in plan.ranks(role)]
            changes = sum(left != right for left, right in itertools.pairwise(order))
            assert changes == len(set(order)) - 1


@given(st.integers(0, 500), st.integers(1, 70))
def test_shares_are_consecutive_complete_and_nearly_equal(total, parts):
    shares = [share(total, parts, index) for index in range(parts)]
    assert [item for one in shares for item in one] == list(range(total))
    sizes = [len(one) for one in shares]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
