import time

import pytest

from hpcrl.comm.wait import Waiter


@pytest.fixture
def sleeps(monkeypatch):
    found = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_polite_waiting_climbs_to_a_millisecond_and_no_further(sleeps):
    waiter = Waiter()
    for _ in range(1000):
        waiter.idle()
    assert sleeps == sorted(sleeps)
    assert sleeps[-1] == max(sleeps) == pytest.approx(1e-3)
    assert len(sleeps) < 1000  # the first polls follow at once


@pytest.mark.parametrize("crowded", [True, False])
def test_where_ranks_share_cores_it_sleeps_sooner(sleeps, crowded):
    waiter = Waiter(crowded=crowded)
    for _ in range(30):
        waiter.idle()
    assert bool(sleeps) == crowded


def test_progress_starts_it_again(sleeps):
    waiter = Waiter()
    for _ in range(1000):
        waiter.idle()
    waiter.reset()
    sleeps.clear()
    waiter.idle()
    assert sleeps == []


def test_spin_never_sleeps(sleeps):
    waiter = Waiter("spin")
    for _ in range(1000):
        waiter.idle()
    assert sleeps == []


def test_until_polls_until_ready(sleeps):
    answers = iter([False] * 5 + [True])
    assert Waiter().until(lambda: next(answers))
    assert next(answers, None) is None


def test_until_gives_up_in_time():
    start = time.perf_counter()
    assert not Waiter().until(lambda: False, timeout_s=0.05)
    assert time.perf_counter() - start >= 0.05


def test_ready_at_once_needs_no_time():
    assert Waiter().until(lambda: True, timeout_s=0.0)


class FakeAlarm:
    """Rung by the test; notes how long anybody slept on it."""

    def __init__(self):
        self.word = 7
        self.sleeps = []

    def look(self):
        return self.word

    def sleep(self, seen, seconds):
        assert seen == self.word
        self.sleeps.append(seconds)


def test_with_an_alarm_it_sleeps_on_that_alone(sleeps):
    alarm = FakeAlarm()
    waiter = Waiter(alarm=alarm)
    for _ in range(1000):
        waiter.idle()
    assert sleeps == [] and alarm.sleeps == sorted(alarm.sleeps)
    assert alarm.sleeps[-1] == pytest.approx(1e-3)


@pytest.mark.parametrize("crowded", [True, False])
def test_where_all_ring_nobody_looks_early_at_the_cost_of_others(sleeps, crowded):
    """With more ranks than cores: an early look takes a core from whoever is about to ring."""
    alarm = FakeAlarm()
    waiter = Waiter(crowded=crowded, alarm=alarm, all_ring=True)
    for _ in range(1000):
        waiter.idle()
    assert alarm.sleeps == sorted(alarm.sleeps) and alarm.sleeps[-1] == pytest.approx(4e-3)
    assert (alarm.sleeps[0] < 1e-3) == (not crowded)
    plain = waiter.with_alarm(None)  # where nobody rings it looks as early as ever
    for _ in range(1000):
        plain.idle()
    assert sleeps[0] == pytest.approx(50e-6) and sleeps[-1] == pytest.approx(1e-3)


def test_a_ring_since_the_last_poll_means_another_poll_at_once():
    alarm = FakeAlarm()
    waiter = Waiter(alarm=alarm)
    for _ in range(1000):
        waiter.idle()
    slept = len(alarm.sleeps)
    alarm.word += 1
    waiter.idle()
    assert len(alarm.sleeps) == slept
    waiter.idle()
    assert len(alarm.sleeps) == slept + 1


def test_spin_does_not_look_at_the_alarm():
    alarm = FakeAlarm()
    waiter = Waiter("spin", alarm=alarm)
    for _ in range(1000):
        waiter.idle()
    assert alarm.sleeps == []


def test_eager_waiting_does_not_sleep_at_first(sleeps):
    answers = iter([False] * 500 + [True])
    assert Waiter(crowded=True).until(lambda: next(answers), eager_s=60.0)
    assert sleeps == []


def test_eager_waiting_becomes_polite(sleeps):
    answers = iter([False] * 100_000 + [True])
    Waiter(crowded=True).until(lambda: bool(sleeps) or next(answers), eager_s=0.001)
    assert sleeps != []


def test_whoever_waits_beats_and_whoever_gets_on_works():
    signs = []
    waiter = Waiter()
    waiter.beat, waiter.work = lambda: signs.append("beat"), lambda: signs.append("work")
    other = waiter.with_alarm(None)
    waiter.idle()
    assert signs == ["beat"]
    waiter.reset()
    assert signs == ["beat", "work"]
    answers = iter([False] * 5 + [True])
    other.until(lambda: next(answers))
    assert len(signs) >= 7 and set(signs[2:]) == {"beat"}, "a wait is no work, not even its beginning"
    other.reset()
    assert signs[-1] == "work"
