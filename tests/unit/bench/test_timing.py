import pytest

from hpcrl.bench.mpi import timing
from hpcrl.bench.mpi.timing import Case, summary, time_cases


class TwoRanks:
    """A communicator whose other rank always takes `other_s` seconds."""

    def __init__(self, other_s):
        self.other_s = other_s

    def Barrier(self):
        pass

    def Ibarrier(self):
        return self

    def Test(self):
        return True

    def allgather(self, seconds):
        return [seconds, self.other_s]


@pytest.fixture
def clock(monkeypatch):
    """Time passes only when something says so."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def passing(clock, *seconds):
    """Work that takes `seconds`, one after the other."""
    left = list(seconds)

    def work():
        clock[0] += left.pop(0)

    return work


def test_cases_take_turns_and_are_prepared_each_time(clock):
    done = []
    cases = {
        name: Case(lambda n=name: done.append(n), lambda n=name: done.append(f"before {n}")) for name in "ab"
    }
    time_cases(TwoRanks(0.0), cases, rounds=2)
    assert done == 3 * ["before a", "a", "before b", "b"]


def test_warm_up_and_preparation_do_not_count(clock):
    case = Case(passing(clock, 9.0, 3.0, 1.0, 2.0), passing(clock, 50.0, 50.0, 50.0, 50.0))
    found = time_cases(TwoRanks(0.0), {"it": case}, rounds=3)
    assert found == {"it": {"seconds": 2.0, "seconds_best": 1.0, "seconds_rounds": [3.0, 1.0, 2.0]}}


def test_a_round_takes_as_long_as_its_slowest_rank(clock):
    found = time_cases(TwoRanks(2.5), {"it": Case(passing(clock, 0.0, 1.0, 9.0))}, rounds=2)
    assert found["it"]["seconds_rounds"] == [2.5, 9.0]


def test_times_are_those_of_one_unit(clock):
    found = time_cases(TwoRanks(0.0), {"it": Case(passing(clock, 0.0, 8.0), units=4)}, rounds=1)
    assert found["it"]["seconds"] == 2.0


def test_summary():
    assert summary([4.0, 1.0, 2.0])["seconds"] == 2.0
    assert summary([4.0, 1.0])["seconds"] == 2.5


def test_slow_rounds_are_fewer_but_never_none(clock):
    found = time_cases(TwoRanks(0.0), {"it": Case(passing(clock, *5 * [7.0]))}, rounds=5, most_s=20.0)
    assert found["it"]["seconds_rounds"] == [7.0, 7.0]
    found = time_cases(TwoRanks(50.0), {"it": Case(passing(clock, *5 * [7.0]))}, rounds=5, most_s=20.0)
    assert found["it"]["seconds_rounds"] == [50.0]
