"""Every moment of a rank belongs to one hop of one role."""

import re
from pathlib import Path

import pytest

from hpcrl.config import ConfigError, ProfileConfig
from hpcrl.config.hops import BETWEEN, HOPS, entered_hops
from hpcrl.roles import timers as module
from hpcrl.roles.timers import Timers

SOURCE = Path(module.__file__).parents[1]


class Clock:
    """One that moves when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        self.slept = []
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(module.time, "sleep", self.sleep)

    def passes(self, seconds):
        self.now += seconds

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Trace:
    """Keeps what it is told."""

    due = over = False

    def __init__(self):
        self.slices, self.threads, self.values = [], {}, []

    def thread(self, thread, name):
        self.threads[thread] = name

    def slice(self, thread, name, start, stop):
        self.slices.append((thread, name, start, stop))

    def counter(self, thread, name, when, value):
        self.values.append((name, when, value))


def found(timers):
    """(seconds, own_s, count) by (role, hop); own times must add up to the age."""
    rows = timers.rows()
    assert rows["own_s"].sum() == pytest.approx(rows["age_s"][0]), "a moment belongs to no hop, or to two"
    assert len(set(rows["age_s"])) == 1
    return {
        (row["role"].decode(), row["hop"].decode()): (row["seconds"], row["own_s"], row["count"])
        for row in rows
    }


def finish(loop, clock, between=0.0):
    for _ in loop:
        clock.passes(between)


def test_the_time_of_an_inner_hop_is_not_the_outer_ones_own(clock):
    timers = Timers("learner")
    clock.passes(3.0)
    for _ in range(2):
        with timers("algorithm.update"):
            clock.passes(1.0)
            with timers("reducer.mean_gradients"):
                clock.passes(0.25)
                with timers("reducer.wait"):
                    clock.passes(0.5)
            clock.passes(1.0)
    assert found(timers) == {
        ("learner", "start"): (3.0, 3.0, 1),
        ("learner", "algorithm.update"): (5.5, 4.0, 2),
        ("learner", "reducer.mean_gradients"): (1.5, 0.5, 2),
        ("learner", "reducer.wait"): (1.0, 1.0, 2),
    }


def test_hops_in_a_row_leave_no_moment_between_them(clock):
    timers = Timers("actor")
    for _ in range(3):
        timers.begin("algorithm.act")
        clock.passes(2.0)
        timers.then("env.send")
        clock.passes(1.0)
        timers.end()
    assert found(timers)["actor", "algorithm.act"] == (6.0, 6.0, 3)
    assert found(timers)["actor", "env.send"] == (3.0, 3.0, 3)


def test_of_the_roles_of_a_rank_the_one_that_runs_has_the_time(clock):
    """The actor waits in a hop of its own while the learner works."""
    timers = Timers("actor", begun=90.0)

    def actor():
        clock.passes(1.0)
        yield True
        with timers("grant.wait"):
            yield False
            clock.passes(0.5)
        clock.passes(0.25)

    def learner():
        clock.passes(2.0)
        yield True
        with timers("algorithm.update"):
            clock.passes(4.0)
        yield True

    loops = [timers.run("actor", 0, actor()), timers.run("learner", 0, learner())]
    for _ in range(2):
        for loop in loops:
            next(loop)
    for loop in loops:
        finish(loop, clock)
    assert found(timers) == {
        ("actor", "start"): (11.0, 11.0, 1),
        ("actor", "role.loop"): (0.25, 0.25, 1),
        ("actor", "grant.wait"): (4.5, 0.5, 1),
        ("learner", "start"): (2.0, 2.0, 1),
        ("learner", "algorithm.update"): (4.0, 4.0, 1),
    }


def test_a_role_without_a_hop_waits_until_there_is_something_to_do(clock):
    timers = Timers("replay")

    def replay():
        yield False
        clock.passes(0.5)  # a fruitless poll
        yield False
        with timers("replay.insert"):
            clock.passes(2.0)
        yield True
        clock.passes(0.25)  # nothing either, but that is not known before the next yield
        yield False
        yield True

    finish(timers.run("replay", 0, replay()), clock, between=1.0)
    assert found(timers) == {
        ("replay", "start"): (0.0, 0.0, 1),
        ("replay", "role.wait"): (3.5, 3.5, 2),
        ("replay", "replay.insert"): (2.0, 2.0, 1),
        ("replay", "role.loop"): (2.25, 2.25, 1),
    }


def test_what_an_exception_leaves_open_is_closed(clock):
    timers = Timers("learner")
    with pytest.raises(KeyError), timers("evaluation"):
        timers.begin("env.recv")
        clock.passes(1.0)
        raise KeyError
    assert timers.open_hops == []
    with timers("algorithm.update"):
        with timers("reducer.mean_gradients"):
            assert timers.open_hops == ["algorithm.update"]
        clock.passes(2.0)
    assert found(timers)["learner", "algorithm.update"] == (2.0, 2.0, 1)


def test_a_hop_under_way_counts_up_to_now(clock):
    timers = Timers("learner")
    timers.begin("batch.wait")
    clock.passes(7.0)
    assert found(timers) == {("learner", "batch.wait"): (7.0, 7.0, 1)}


def test_a_span_beside_the_hops_takes_no_time_from_them(clock):
    timers = Timers("replay")
    timers.add("limiter.insert_wait", 50.0)
    clock.passes(1.0)
    assert found(timers)["replay", "limiter.insert_wait"] == (50.0, 0.0, 1)


def test_rows_are_due_ever_less_often(clock):
    timers, times = Timers("actor"), 0
    for _ in range(86400):
        with timers("env.recv"):
            clock.passes(1.0)
        if timers.due:
            times += 1
            timers.rows()
    assert 50 < times < 120


def test_every_entry_of_a_delayed_hop_takes_longer_and_no_other(clock):
    timers = Timers("actor", delay_s={"env.send": 0.5, "policy.fetch": 2.0})
    with timers("policy.fetch"):
        clock.passes(1.0)
    for _ in range(3):
        timers.begin("algorithm.act")
        timers.then("env.send")
        timers.then("trajectory.write")
        timers.end()
    assert clock.slept == [2.0, 0.5, 0.5, 0.5]
    assert found(timers)["actor", "policy.fetch"] == (3.0, 3.0, 1)
    assert found(timers)["actor", "env.send"] == (1.5, 1.5, 3)


def test_an_undeclared_hop_is_refused():
    with pytest.raises(ValueError, match=r"'env\.rec' is no hop; the hops are start, grant\.wait"):
        Timers()("env.rec")


def test_the_trace_is_told_of_hops_by_role(clock):
    timers = Timers("replay", begun=95.0)
    timers.trace = trace = Trace()

    def replay():
        yield True
        with timers("replay.insert"):
            clock.passes(1.0)
        timers.counter("queue", 3)
        yield True

    def learner():
        clock.passes(2.0)
        with timers("batch.wait"):
            yield False
            yield True

    loops = [timers.run("replay", 0, replay()), timers.run("learner", 0, learner())]
    for _ in range(2):
        for loop in loops:
            next(loop)
    for loop in loops:
        finish(loop, clock)
    assert trace.threads == {0: "replay", 1: "learner"}
    assert trace.slices == [
        (0, "start", 95.0, 100.0),
        (1, "start", 100.0, 102.0),
        (0, "replay.insert", 102.0, 103.0),
        (1, "batch.wait", 102.0, 103.0),
    ]
    assert trace.values == [("queue", 103.0, 3)]


def test_every_declared_hop_is_entered_somewhere_and_the_other_way_round():
    call = r"(?:timers|timed|self)(?:\.begin|\.then)?\(\s*\"([a-z_]+\.[a-z_]+|evaluation)\"\)"
    files = [
        path
        for folder in ("roles", "comm", "algorithms", "launch")
        for path in (SOURCE / folder).glob("*.py")
    ]
    entered = {name for path in files for name in re.findall(call, path.read_text())}
    assert entered - {"role.wait"} == set(entered_hops())
    assert set(HOPS) - entered - set(BETWEEN) == {"limiter.insert_wait", "limiter.sample_wait"}
    for hop in HOPS.values():
        assert set(hop.within) <= set(HOPS)


@pytest.mark.parametrize(
    ("delays", "words"),
    [
        ({"env.rec": 0.1}, "'env.rec' is no hop that can be delayed; those are grant.wait, policy.fetch"),
        ({"role.wait": 0.1}, "'role.wait' is no hop that can be delayed"),
        ({"limiter.insert_wait": 0.1}, "'limiter.insert_wait' is no hop that can be delayed"),
        ({"env.recv": -0.1}, "env.recv: -0.1 s is less than 0"),
        ({"env.recv": float("nan")}, "delay_s.env.recv"),
        ({"env.recv": float("inf")}, "delay_s.env.recv"),
    ],
)
def test_a_delay_that_cannot_be_is_refused(delays, words):
    with pytest.raises(ConfigError) as refused:
        ProfileConfig.parse({"delay_s": delays}, "profile")
    assert words in str(refused.value)
