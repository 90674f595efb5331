"""What a rank tells of its work and its waits, and when the watch over the run begins."""

import pytest

from hpcrl.launch import pulse
from hpcrl.launch.board import Board
from hpcrl.launch.pulse import Pulse, RollCall, describe_wait, summarize

LIMIT_S = 80.0
LOOK_S = LIMIT_S / 8


class Rank:
    """A pulse whose clock is the test's."""

    def __init__(self, monkeypatch, limit_s=LIMIT_S):
        self.board, self.notes, self.now = Board(), [], 1000.0
        self.can_tell, self.heard = True, False
        monkeypatch.setattr(pulse.time, "perf_counter", lambda: self.now)
        self.pulse = Pulse(self.board, self.tell, lambda: self.heard, lambda: "a wait", limit_s)

    def tell(self, text):
        if self.can_tell:
            self.notes.append(text)
        return self.can_tell

    def poll_for(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            self.pulse.beat()


@pytest.fixture
def rank(monkeypatch):
    made = Rank(monkeypatch)
    made.pulse.begin()
    return made


def test_work_is_told_of_at_the_first_poll_and_not_too_often(rank):
    rank.pulse.beat()
    assert rank.notes == [""], "that it has begun"
    for _ in range(100):
        rank.now += 1.0
        rank.pulse.work()
    assert rank.notes.count("") == 1 + 100 // LOOK_S


def test_polls_are_no_work(rank):
    rank.poll_for(LIMIT_S)
    assert rank.notes == [""]


def test_what_a_rank_waits_for_is_told_once(rank):
    rank.poll_for(3 * LIMIT_S)
    assert rank.notes == ["", "a wait"]
    rank.pulse.work()
    rank.poll_for(3 * LIMIT_S)
    assert rank.notes == ["", "a wait", "", "a wait"]


def test_a_note_that_could_not_be_sent_is_sent_later(rank):
    rank.can_tell = False
    rank.poll_for(2 * LOOK_S)
    rank.can_tell = True
    rank.poll_for(2 * LOOK_S)
    assert rank.notes == [""]


def test_start_up_and_the_end_are_not_told_of(monkeypatch):
    rank = Rank(monkeypatch)
    rank.poll_for(2 * LIMIT_S)
    assert (rank.notes, rank.board.beats) == ([], 0)
    rank.pulse.begin()
    rank.board.watch_run(on=True)
    rank.poll_for(1)
    rank.pulse.end()
    rank.poll_for(3 * LIMIT_S)
    assert (rank.notes, rank.board.works) == ([""], 0)


def test_without_a_limit_nobody_is_told(monkeypatch):
    rank = Rank(monkeypatch, limit_s=None)
    rank.pulse.begin()
    rank.poll_for(1000)
    assert rank.notes == [] and rank.board.beats > 1000


def test_only_work_counts_for_the_run_here_or_heard_of(rank):
    rank.board.watch_run(on=True)
    rank.poll_for(LIMIT_S)
    assert rank.board.works == 1
    rank.pulse.work()
    assert rank.board.works == 2
    rank.heard = True
    rank.poll_for(LOOK_S + 1)
    assert rank.board.works > 2


class TestRollCall:
    def test_the_watch_begins_when_all_have_been_heard_of(self):
        board = Board()
        roll = RollCall(board, range(3))
        for rank in (2, 0, 2):
            assert roll.take(rank, "")
            assert board.works == 0
        roll.take(1, "")
        assert board.works > 0

    def test_the_dead_are_not_waited_for(self):
        board, dead = Board(), set()
        roll = RollCall(board, range(3), lambda: dead)
        roll.take(0, "")
        dead.add(2)
        roll.take(1, "")
        assert board.works > 0

    def test_a_sign_of_work_counts_whoever_takes_it(self):
        """Those that wait for the end of streams do not ask what has come."""
        board = Board()
        roll = RollCall(board, range(1))
        roll.take(0, "")
        before = board.works
        roll.take(0, "")
        assert board.works == before + 1
        roll.take(0, describe_wait("actor", 0, "", ""))
        assert board.works == before + 1

    def test_waits_are_shown_until_a_rank_works(self):
        board = Board()
        roll = RollCall(board, range(2))
        roll.take(0, "")
        assert not roll.take(0, describe_wait("learner", 0, "batch.wait", "lines")), "waiting is no work"
        assert not roll.take(1, describe_wait("actor", 0, "grant.wait", "others"))
        assert board.waits == (
            "learner 0 in batch.wait; actor 0 in grant.wait",
            "learner 0 (rank 0): lines\nactor 0 (rank 1): others",
        )
        roll.take(0, "")
        roll.take(1, describe_wait("actor", 0, "grant.wait", "others"))
        assert board.waits[0] == "actor 0 in grant.wait"


def test_ranks_that_wait_alike_are_named_together():
    waits = {5: describe_wait("learner", 0, "", "a"), 1: describe_wait("actor", 2, "policy.fetch", "b")}
    waits |= {rank: describe_wait("actor", 10 + rank, "grant.wait", "c") for rank in (7, 8, 9, 12)}
    phrase, lines = summarize(waits)
    assert phrase == (
        "actor 2 in policy.fetch; learner 0 in no wait of its own; actors 17-19,22 in grant.wait"
    )
    assert lines.splitlines()[0] == "actor 2 (rank 1): b" and len(lines.splitlines()) == 6


def test_long_reports_spoil_nothing():
    board = Board()
    board.begin()
    roll = RollCall(board, range(2))
    for rank in range(200):
        note = describe_wait("actor", rank, "grant.wait", "\n" * 100_000)
        assert len(note.encode()) < 60_000, "it fits a block of records"
        roll.take(rank, note)
    assert board.waits[0] == "actors 0-199 in grant.wait"
    assert board.beats == 1 and not board.is_done
