"""What counts as silence, and children that end, hang or have children themselves."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hpcrl.launch import supervise, watchdog
from hpcrl.launch.board import Board
from hpcrl.launch.orphans import Orphans
from hpcrl.launch.watchdog import Silence, Watch
from tests.unit.launch.test_supervise import IDENTIFY, PLACE, PROGRESS, end, gone, start, wait_for_file

STUCK = "hpcrl: actor 3 (rank 5 on n7) has made no progress for 1 s (faults.stall_timeout_s)"


def watch(limit_s):
    return Watch(lambda: 1, limit_s, lambda: "stands still")


def looks(silence, beats, times):
    return [silence.too_long(beats, now) for now in times]


class TestSilence:
    def test_no_beat_for_longer_than_the_limit(self):
        silence = Silence(3.0, now=10.0)
        assert looks(silence, 7, [11.0, 12.0, 13.0, 14.0, 14.5]) == [False] * 4 + [True]

    def test_a_beat_starts_it_again(self):
        silence = Silence(3.0, now=0.0)
        assert looks(silence, 7, [1.0, 2.0, 3.0, 4.0]) == [False] * 4
        assert looks(silence, 8, [5.0, 6.0, 7.0, 8.0]) == [False] * 4
        assert looks(silence, 8, [9.0]) == [True]

    def test_start_up_is_not_limited(self):
        silence = Silence(3.0, now=0.0)
        assert not any(looks(silence, 0, range(1, 100)))
        assert looks(silence, 1, [100, 101, 102, 103, 104]) == [False] * 4 + [True]

    def test_time_in_which_nobody_looked_counts_little(self):
        """The machine slept, or the whole job was stopped."""
        silence = Silence(10.0, now=0.0)
        assert looks(silence, 7, [1.0, 5000.0, 9000.0]) == [False] * 3
        assert looks(silence, 8, [9001.0]) == [False]


@pytest.fixture
def child():
    """Starts a program as a child of this process."""
    started = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())

    def begin(program, **how):
        started.append(subprocess.Popen([sys.executable, "-c", program], **how))
        return started[-1].pid

    yield begin
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for process in started:
        process.kill()
        process.wait()


def test_the_end_is_noticed_between_two_looks(child, monkeypatch):
    monkeypatch.setattr(watchdog, "LOOK_EVERY_S", 600.0)
    status = watchdog.wait(child("import time; time.sleep(0.5); raise SystemExit(5)"), [watch(3600.0)])
    assert isinstance(status, int) and os.waitstatus_to_exitcode(status) == 5


def test_signals_are_handled_between_two_looks(child, monkeypatch):
    monkeypatch.setattr(watchdog, "LOOK_EVERY_S", 600.0)
    pid = child("import time; time.sleep(600)")
    before = signal.signal(signal.SIGUSR1, lambda number, frame: os.kill(pid, signal.SIGTERM))
    try:
        timer = threading.Timer(
            0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        )
        timer.start()
        status = watchdog.wait(pid, [])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(status, int) and os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_the_watch_whose_count_stands_still_is_told(child, monkeypatch):
    monkeypatch.setattr(watchdog, "LOOK_EVERY_S", 0.01)
    moving = itertools.count(1)
    watches = [Watch(lambda: next(moving), 0.05, lambda: "moves"), watch(3600.0), watch(0.05), watch(0.05)]
    assert watchdog.wait(child("import time; time.sleep(600)"), watches) is watches[2]


def test_what_a_child_has_started_dies_with_it(child, tmp_path):
    program = f"""
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
    time.sleep(600)
time.sleep(600)
"""
    pid = child(program)
    grandchild = int(wait_for_file(tmp_path / "pid"))
    watchdog.kill(pid)
    assert gone(pid) and gone(grandchild)


def test_what_takes_too_long_is_left_alone():
    release = threading.Event()
    watchdog.within(0.01, lambda: release.wait(600))
    done = []
    watchdog.within(600, lambda: done.append(1))
    assert done == [1]
    release.set()


@pytest.mark.parametrize(
    "call",
    [
        "while True: pass",
        "time.sleep(600)",
        "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    ],
)
def test_a_rank_that_is_stuck_shows_where(call):
    code, _, errors = end(
        start(f"{IDENTIFY}board.begin()\ndef the_stuck_one():\n    {call}\nthe_stuck_one()")
    )
    assert code == 3
    named = [line for line in errors.splitlines() if line.startswith("hpcrl: ")]
    assert named == [STUCK + PROGRESS]
    assert named[0].startswith(PLACE)
    assert "in the_stuck_one" in errors


def test_a_rank_that_is_stopped_is_said_to_be():
    code, _, errors = end(start(IDENTIFY + "board.begin()\nos.kill(os.getpid(), signal.SIGSTOP)"))
    assert (code, errors) == (3, f"{STUCK}; it is stopped, by a signal{PROGRESS}\n")


def test_a_rank_that_beats_or_has_not_begun_goes_on():
    body = """
board.beat()
time.sleep(3)
board.begin()
for _ in range(40):
    time.sleep(0.1)
    board.beat()
board.done()
return 75
"""
    assert end(start(body)) == (75, "", "")


RUN = "hpcrl: no rank of the run has made progress for 2 s (twice faults.stall_timeout_s): "


def test_a_run_in_which_everybody_waits_is_named_with_what_they_wait_for():
    body = """
board.begin()
board.watch_run(on=True)
for step in range(30):
    time.sleep(0.1)
    board.work()
board.show_waits("actors 0-3 in grant.wait", "actor 0: a stream\\nactor 1: another")
while True:
    time.sleep(0.1)
    board.beat()
"""
    began = time.monotonic()
    code, _, errors = end(start(IDENTIFY + body))
    assert (code, errors) == (3, f"actor 0: a stream\nactor 1: another\n{RUN}actors 0-3 in grant.wait\n")
    assert time.monotonic() - began > 5.0, "as long as somebody works the run goes on"


def test_a_start_that_never_ends_is_named_with_what_it_was_at():
    body = "board.identify(rank=5, node='n7')\nboard.enter('making environments')\ntime.sleep(600)"
    code, _, errors = end(start(body, options=", start_timeout_s=1.0"))
    named = [line for line in errors.splitlines() if line.startswith("hpcrl: ")]
    words = "has not started within 1 s (faults.start_timeout_s): it was making environments"
    assert (code, named) == (3, [f"hpcrl: rank 5 (during start-up on n7) {words}"])


@pytest.mark.parametrize(
    ("rank", "together", "polls", "patience"),
    [
        (0, False, False, 0),
        (5, False, False, 0),
        (0, True, False, 5),
        (5, True, False, 10),
        (5, False, True, 10),
    ],
)
def test_who_waits_for_others_in_its_start_lets_them_be_named(rank, together, polls, patience):
    board = Board()
    board.enter("waiting", together=not together)
    board.identify(rank=rank, node="n7")
    board.enter("making environments", together=together)
    if polls:
        board.beat()
    silence = Silence(20.0, now=0.0)
    (watch, *_) = supervise._watches(board, 30.0, 20.0)
    late = [silence.too_long(watch.count(), now, watch.patience_s()) for now in range(1, 60)]
    assert late.index(True) == 20 + patience + 1
    board.begin()
    assert not silence.too_long(watch.count(), 60.0, watch.patience_s())


def test_a_start_that_ends_in_time_has_no_limit_any_more():
    body = (
        "board.begin()\nfor _ in range(30):\n    time.sleep(0.1)\n    board.beat()\nboard.done()\nreturn 75"
    )
    assert end(start(body, options=", start_timeout_s=1.0")) == (75, "", "")


LEAVES = """
import subprocess
from pathlib import Path
program = "import os, subprocess; child = subprocess.Popen(['sleep', '600']); "
program += "print(os.getpid(), child.pid, flush=True)"
left = subprocess.Popen([sys.executable, "-c", program + {wait!r}], stdout=subprocess.PIPE)
Path(sys.argv[1]).write_bytes(left.stdout.readline())
"""


@pytest.mark.parametrize(
    ("wait", "last", "code"),
    [
        ("; child.wait()", "os.kill(os.getpid(), signal.SIGKILL)", 3),
        ("", "board.done()\nreturn 4", 4),  # a child's child whose parent has gone as well
    ],
)
def test_what_a_rank_leaves_behind_is_ended(tmp_path, wait, last, code):
    process = start(LEAVES.format(wait=wait) + last, tmp_path / "pids")
    pids = [int(word) for word in wait_for_file(tmp_path / "pids").split()]
    assert end(process)[0] == code
    assert len(pids) == 2 and all(gone(pid) for pid in pids)


def test_children_from_before_are_left_alone():
    before = subprocess.Popen(["sleep", "600"])
    try:
        orphans = Orphans()
        after = subprocess.Popen(["true"])
        orphans.end()
        assert before.poll() is None and after.poll() is not None
    finally:
        before.kill()
        before.wait()
