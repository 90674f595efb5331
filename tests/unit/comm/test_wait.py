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
