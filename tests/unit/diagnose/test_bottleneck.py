"""Who waits for whom: the hop that holds a run up, from times made in memory."""

import numpy as np
import pytest

from hpcrl.config import RunConfig
from hpcrl.config.hops import HOPS
from hpcrl.diagnose.bottleneck import find_bottleneck
from hpcrl.diagnose.faster import faster
from hpcrl.diagnose.times import PART_OF, PARTS, rank_times
from hpcrl.diagnose.view import CannotTell
from hpcrl.launch.recipes import load_config
from tests.unit.diagnose.support import (
    SYNCHRONOUS,
    make_config,
    make_view,
    rows,
    seats,
    timers,
    updates,
)

ACTOR = ("policy.fetch", "algorithm.act", "env.send", "env.recv", "trajectory.write", "stream.send")
REPLAY = ("replay.insert", "replay.sample")
LEARNER = ("algorithm.update", "reducer.mean_gradients", "optimizer.step", "publisher.publish", "evaluation")
OF_ROLE = {"actor": ACTOR, "replay": REPLAY, "learner": LEARNER, "worker": ACTOR[1:5] + LEARNER[:3]}
WAIT = {"actor": "grant.wait", "replay": "role.wait", "learner": "batch.wait"}
STEP_S = 0.01
"""What every hop takes, 60 times."""


def cycle(role, slow_hop, slow_s, period_s):
    """Times of one rank over 60 updates: a role that is done early waits for the rest of each period."""
    own = {hop: STEP_S + (slow_s if hop == slow_hop else 0.0) for hop in OF_ROLE[role]}
    if role in WAIT:
        own[WAIT[role]] = period_s - sum(own.values())
    return {hop: 60 * seconds for hop, seconds in own.items()}


def slow_pipeline(hop, one_rank=False):
    """All three roles work at the same time, as fast as the slowest; or one after the other in one process."""
    slow_s = 0.1
    lengths = {role: STEP_S * len(OF_ROLE[role]) + slow_s * (hop in OF_ROLE[role]) for role in WAIT}
    period_s = sum(lengths.values()) if one_rank else max(lengths.values())
    own = {(role, 0): cycle(role, hop, slow_s, period_s) for role in WAIT}
    if one_rank:
        for (role, _), hops in own.items():
            hops.pop(WAIT[role])
    wall_s = 60 * period_s
    table = np.concatenate(
        [timers({key: hops}, wall_s if not one_rank else 0.0) for key, hops in own.items()]
    )
    table["age_s"] = wall_s
    return make_view(
        timers=table, ranks=seats(*WAIT, one_rank=one_rank), updates=updates(60, time_s=np.arange(60.0))
    )


@pytest.mark.parametrize("one_rank", [False, True])
@pytest.mark.parametrize("hop", ACTOR + REPLAY + LEARNER)
def test_a_slow_hop_of_a_pipeline_is_named_first(hop, one_rank):
    found = find_bottleneck(slow_pipeline(hop, one_rank))
    assert (found.hop, next(iter(found.hops)), found.part) == (hop, hop, PART_OF[hop])
    role = next(role for role in WAIT if hop in OF_ROLE[role])
    assert found.rank == ("the one process" if one_rank else f"{role} 0")
    assert hop in found.evidence[0]


@pytest.mark.parametrize("hop", OF_ROLE["worker"])
def test_a_slow_hop_of_the_synchronous_scheme_is_named_first(hop):
    own = {("worker", rank): cycle("worker", hop, 0.1, 0.0) for rank in range(2)}
    view = make_view(make_config(**SYNCHRONOUS), timers=timers(own, 0.0), ranks=seats("worker", "worker"))
    view["timers"]["age_s"] = sum(own["worker", 0].values())
    assert find_bottleneck(view).hop == hop


def two_learners(first, second):
    plan = seats("replay", "actor", "learner", "learner")
    config = make_config(ranks={"actors": 2, "learners": 2})
    return make_view(
        config,
        timers=timers({("actor", 0): {"grant.wait": 9.0}, ("learner", 0): first, ("learner", 1): second}),
        ranks=plan,
    )


def test_a_slow_learner_is_the_bottleneck_not_the_sum_in_which_the_others_wait_for_it():
    fast = {"algorithm.update": 2.0, "reducer.wait": 7.0, "reducer.mean_gradients": 1.0}
    slow = {"algorithm.update": 8.5, "reducer.wait": 0.5, "reducer.mean_gradients": 1.0}
    found = find_bottleneck(two_learners(fast, slow))
    assert (found.rank, found.hop) == ("learner 1", "algorithm.update")
    assert "the other learner waits 65 % more of the time in sums for it" in found.evidence


def test_what_all_learners_wait_for_in_sums_is_the_reduction():
    own = {"algorithm.update": 2.0, "reducer.wait": 7.0, "reducer.mean_gradients": 1.0}
    found = find_bottleneck(two_learners(own, own))
    assert (found.part, found.hop) == ("reduction", "reducer.mean_gradients")


def test_the_slowest_actor_is_the_one_that_is_named():
    quick = {"env.recv": 1.0, "grant.wait": 8.0}
    own = {
        ("actor", 0): quick,
        ("actor", 1): {"env.recv": 9.0},
        ("replay", 0): {},
        ("learner", 0): {"batch.wait": 8.0},
    }
    plan = seats("replay", "actor", "actor", "learner")
    found = find_bottleneck(make_view(make_config(ranks={"actors": 2}), timers=timers(own), ranks=plan))
    assert (found.rank, found.hop) == ("actor 1", "env.recv")
    assert found.evidence[0].startswith(
        "actor 1 waits least: it works 90 % of its time; environment takes 90 %"
    )


WAITING = {
    ("actor", 0): {"grant.wait": 8.0, "env.recv": 1.0},
    ("replay", 0): {"replay.insert": 0.1},
    ("learner", 0): {"batch.wait": 8.0, "algorithm.update": 1.0},
}


@pytest.mark.parametrize(
    ("lag", "hop", "rank"), [(0.1, "grant.wait", "actor 0"), (0.9, "batch.wait", "learner 0")]
)
def test_where_all_wait_for_messages_the_age_of_the_data_tells_at_which_end(lag, hop, rank):
    found = find_bottleneck(make_view(timers=timers(WAITING), updates=updates(lag_mean=lag)))
    assert (found.part, found.hop, found.rank) == ("transport", hop, rank)
    assert found.change.text.startswith("lag.max_lag=2")


def test_ranks_that_take_turns_are_held_up_by_work_not_by_messages():
    own = {
        ("actor", 0): {"grant.wait": 5.6, "env.recv": 4.4},
        ("replay", 0): {"replay.insert": 0.1},
        ("learner", 0): {"batch.wait": 5.5, "algorithm.update": 4.5},
    }
    found = find_bottleneck(make_view(make_config(lag={"max_lag": 0}), timers=timers(own)))
    assert (found.hop, found.rank) == ("algorithm.update", "learner 0")
    assert "in turn" in found.evidence[0]


def test_more_actors_are_advised_as_many_as_the_learner_has_room_for():
    own = {
        ("actor", 0): {"env.recv": 9.5},
        ("replay", 0): {},
        ("learner", 0): {"algorithm.update": 6.0, "batch.wait": 4.0},
    }
    config = make_config(env={"id": "CartPole-v1", "num_envs": 64}, ranks={"actors": 12})
    plan = seats("replay", *["actor"] * 12, "learner")
    times = {("actor", number): own["actor", 0] for number in range(12)} | own
    change = find_bottleneck(make_view(config, timers=timers(times), ranks=plan)).change
    assert (change.key, change.value) == ("ranks.actors", 20)
    assert "8 more, on cores of their own; the learners work 60 % of their time" in change.text


def test_what_travels_is_evidence_where_moving_it_takes_long():
    early, late = ({"messages": n, "bytes": 4e6 * n, "wait_s": n / 10} for n in (1, 5))
    edges = [
        rows("edges", stream=stream, source=1, dest=0, time_s=time_s, **more)
        for stream, time_s, more in (
            ("trajectory", 1.0, early),
            ("trajectory", 10.0, late),
            ("grant", 10.0, {"bytes": 9, "messages": 9}),
        )
    ]
    view = slow_pipeline("stream.send")
    view.tables["edges"] = np.concatenate(edges)
    said = "most bytes travel as trajectory: 20 MB in 5 messages, 2 MB/s; the senders waited 0.5 s"
    assert said in find_bottleneck(view).evidence
    view = slow_pipeline("env.recv")
    view.tables["edges"] = np.concatenate(edges)
    assert said not in find_bottleneck(view).evidence


def test_a_crowded_node_is_said():
    view = slow_pipeline("env.recv")
    view["ranks"]["cores"] = b"0-1"
    assert (
        "3 ranks share 2 cores on n1: times there hold waiting for a core" in find_bottleneck(view).evidence
    )


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"updates": updates(4)}, "4 updates so far; 5 are needed"),
        ({}, "no times are written yet"),
        (
            {"timers": timers({("actor", 0): {"env.recv": 0.4}}, 0.5)},
            "its times are of 0.5 s; 1 s are needed",
        ),
    ],
)
def test_what_is_too_short_cannot_be_told(tables, words):
    with pytest.raises(CannotTell, match=words):
        find_bottleneck(make_view(**tables))


class TestTimes:
    def only(self, table, *roles, one_rank=False, steady_s=0.0):
        (rank,) = rank_times(table, seats(*roles, one_rank=one_rank), steady_s)
        return rank

    def test_what_was_before_the_run_was_in_its_stride_is_left_out(self):
        early = timers({("learner", 0): {"start": 3.0, "algorithm.update": 1.5}}, 5.0, time_s=1.2)
        late = timers({("learner", 0): {"start": 3.0, "algorithm.update": 7.0}}, 13.0, time_s=9.2)
        rank = self.only(np.concatenate([early, late]), "learner", steady_s=1.0)
        assert rank.wall_s == 8.0 and rank.own_s["algorithm.update"] == 5.5
        assert self.only(np.concatenate([early, late]), "learner", steady_s=2.0).wall_s == 10.0

    def test_most_of_the_time_stays(self):
        """Only an early moment is one to begin at."""
        early = timers({("learner", 0): {"algorithm.update": 1.0}}, 6.0, time_s=6.0)
        late = timers({("learner", 0): {"algorithm.update": 7.0}}, 10.0)
        assert self.only(np.concatenate([early, late]), "learner").own_s["algorithm.update"] == 7.0

    def test_roles_of_one_rank_are_one(self):
        table = timers({("actor", 0): {"env.recv": 2.0}, ("learner", 0): {"algorithm.update": 3.0}}, 5.0)
        rank = self.only(table, "actor", "learner", one_rank=True)
        assert (rank.name, rank.busy_share, rank.share("env.recv")) == ("the one process", 1.0, 0.4)

    def test_spans_are_no_time_of_the_rank(self):
        table = timers({("replay", 0): {"replay.insert": 1.0, "limiter.insert_wait": 8.0}}, 10.0)
        assert "limiter.insert_wait" not in self.only(table, "replay").own_s

    def test_files_without_own_times_are_read(self):
        table = timers({("learner", 0): {"algorithm.update": 6.0, "reducer.mean_gradients": 4.0}}, 0.0)
        table["own_s"] = table["age_s"] = np.nan
        rank = self.only(table, "learner")
        assert rank.own_s == {"algorithm.update": 2.0, "reducer.mean_gradients": 4.0} and rank.wall_s == 10.0


def test_every_hop_in_which_a_rank_works_belongs_to_one_part():
    work = {hop for hop, what in HOPS.items() if what.kind in ("compute", "communicate", "rest")} - {"start"}
    assert work <= set(PART_OF) <= set(HOPS)
    assert sum(map(len, PARTS.values())) == len(PART_OF)


@pytest.mark.parametrize("recipe", ["impala", "ppo", "a2c", "a3c", "decoupled_ppo", "impact", "dqn", "apex"])
def test_every_change_is_one_that_the_recipe_allows(recipe):
    config = load_config(f"jobs/cartpole.py:{recipe}", [], None)
    workers = config.scheme == "synchronous"
    plan = seats("worker") if workers else seats("replay", "actor", "learner")
    own = {("worker", 0): {"env.recv": 1.0}} if workers else {("actor", 0): {"env.recv": 1.0}}
    replay = {"replay": rows("replay")} if config.algorithm.uses_replay else {}
    view = make_view(config.to_dict(), timers=timers(own), ranks=plan, **replay)
    for hop, part in PART_OF.items():
        change = faster(view, part, hop, view.times[0], view.times)
        if change.key is not None:
            changed = RunConfig.parse(view.config).with_overrides([change.text.partition(": ")[0]])
            assert changed.to_dict() != view.config, hop
        else:
            assert "hpcrl run" in change.text


@pytest.mark.parametrize(
    ("evaluation", "text"),
    [
        ({"every_env_steps": 1000, "episodes": 8}, "evaluation.every_env_steps=2000: half as often"),
        ({"episodes": 8}, "evaluation.episodes=4: half of 8"),
    ],
)
def test_evaluations_that_hold_the_learners_up_become_rare_or_short(evaluation, text):
    view = slow_pipeline("evaluation")
    view.config["evaluation"] = evaluation
    assert find_bottleneck(view).change.text == text
