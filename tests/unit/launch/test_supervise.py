"""Real processes that die in every way; the supervisor must say so."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcrl.launch import aftermath
from hpcrl.launch.board import Board
from tests.processes import gone

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from hpcrl.comm.signals import SignalFlag
from hpcrl.launch.supervise import supervised

flag = SignalFlag()
flag.install()

def body(board):
{body}

sys.exit(supervised(body, flag, 1.0{options}))
"""
IDENTIFY = """
board.identify(role="actor", role_rank=3, rank=5, node="n7")
board.report("update 41")
board.report("update 42")
"""
PLACE = "hpcrl: actor 3 (rank 5 on n7) "
PROGRESS = "; last progress: update 42"


def start(body, *arguments, options=""):
    indented = "\n".join("    " + line for line in body.splitlines())
    command = [sys.executable, "-c", PROGRAM.format(body=indented, options=options), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process, timeout_s=60):
    output, errors = process.communicate(timeout=timeout_s)
    return process.returncode, output, errors


def wait_for_file(path):
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)
    return path.read_text()


@pytest.mark.parametrize("code", [0, 1, 2, 4, 75])
def test_a_rank_that_has_said_all_keeps_its_code(code):
    process = start(f"print('working'); board.done(); return {code}")
    assert end(process) == (code, "working\n", "")


@pytest.mark.parametrize(
    ("death", "cause"),
    [
        ("os._exit(9)", "ended without a word, exit status 9"),
        ("os._exit(0)", "ended without a word, exit status 0"),
        ("return 0", "ended without a word, exit status 0"),
        ("os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)", "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV); time.sleep(60)", "was killed by SIGSEGV"),
        ("os.kill(os.getpid(), 40); time.sleep(60)", "was killed by signal 40"),
        ("sys.exit(3)", "failed: SystemExit: 3"),
        ("sys.exit(0)", "failed: SystemExit: 0"),
        ("raise ValueError('no such thing')", "failed: ValueError: no such thing"),
        ("raise OSError('time = now\\n, errno = 28')", "failed: OSError: time = now , errno = 28"),
        ("import no_such_module", "failed: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise KeyboardInterrupt", "failed: KeyboardInterrupt: "),
    ],
)
def test_every_other_end_is_named_in_one_line(death, cause):
    code, _, errors = end(start(IDENTIFY + death))
    assert code == 3
    named = [line for line in errors.splitlines() if line.startswith("hpcrl: ")]
    assert named == [PLACE + cause + PROGRESS]
    assert ("Traceback" in errors) == cause.startswith("failed")


def test_a_death_is_passed_on_without_a_word_where_that_is_wanted():
    assert end(start(IDENTIFY + "os._exit(9)", options=", names_the_dead=False")) == (1, "", "")


def test_a_rank_that_dies_before_it_knows_its_name():
    code, _, errors = end(start("os._exit(9)"))
    assert (code, errors) == (3, "hpcrl: rank (during start-up) ended without a word, exit status 9\n")


def test_the_cause_is_noted_in_the_run_directory(tmp_path):
    (tmp_path / "status.json").write_text('{"status": "running", "attempt": 1}')
    body = IDENTIFY.replace('node="n7"', 'node="n7", run_dir=sys.argv[1]') + "os._exit(9)"
    assert end(start(body, tmp_path))[0] == 3
    status = (tmp_path / "status.json").read_text()
    assert (
        '"failed"' in status
        and "actor 3 (rank 5 on n7) ended without a word" in status
        and "update 42" in status
    )


BROKEN = """
Path(sys.argv[1], "pid").write_text(str(os.getpid()))
os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(60)
"""


@pytest.mark.parametrize(("status", "lines"), [("running", 1), ("failed", 0)])
def test_a_run_that_stands_still_is_named_unless_a_rank_has_failed(tmp_path, status, lines):
    """One that is stalled is named by its own parent; that nobody else gets on follows from it."""
    (tmp_path / "status.json").write_text(f'{{"status": "{status}", "attempt": 1}}')
    polls = "board.begin(); board.watch_run(on=True)\nwhile True:\n    board.beat()\n    time.sleep(0.05)"
    code, _, errors = end(
        start(IDENTIFY.replace('node="n7"', 'node="n7", run_dir=sys.argv[1]') + polls, tmp_path)
    )
    assert code == 3
    named = [line for line in errors.splitlines() if line.startswith("hpcrl: ")]
    assert len(named) == lines, errors
    assert all("no rank of the run has made progress for 2 s" in line for line in named)


def test_a_rank_that_a_broken_connection_kills_leaves_the_word_to_the_one_that_died(tmp_path):
    (tmp_path / "status.json").write_text('{"status": "failed", "attempt": 1, "cause": "actor 0 was killed"}')
    body = IDENTIFY.replace('node="n7"', 'node="n7", run_dir=sys.argv[1]') + BROKEN
    assert end(start(body, tmp_path)) == (3, "", "")


def test_a_rank_that_a_broken_connection_kills_is_silent_when_the_launcher_ends_the_others(tmp_path):
    process = start(IDENTIFY + BROKEN, tmp_path)
    rank = Path("/proc", wait_for_file(tmp_path / "pid"))
    while rank.exists():  # until its supervisor knows that it is dead
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert end(process) == (3, "", "")


WAITS = """
Path(sys.argv[1], "ready").write_text("yes")
time.sleep(60)
"""


def test_a_rank_that_is_told_to_end_after_the_death_of_another_does_not_wait_for_it(tmp_path):
    (tmp_path / "status.json").write_text('{"status": "failed", "attempt": 1, "cause": "actor 0 was killed"}')
    process = start(IDENTIFY.replace('node="n7"', 'node="n7", run_dir=sys.argv[1]') + WAITS, tmp_path)
    wait_for_file(tmp_path / "ready")
    time.sleep(0.2)  # the parent's handlers
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert end(process, 30) == (3, "", "")


@pytest.mark.parametrize(("step", "number", "ends"), [("4", 15, True), ("4", 10, False), (None, 15, False)])
def test_nor_does_one_that_srun_ends_before_there_is_a_run_directory(monkeypatch, step, number, ends):
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    if step is not None:
        monkeypatch.setenv("SLURM_STEP_ID", step)
    now = time.monotonic()
    assert aftermath.nothing_to_end(None, {number: now - 60.0}) == ends
    assert not aftermath.nothing_to_end(None, {number: now})
    assert not aftermath.nothing_to_end(None, {})


@pytest.mark.parametrize("end_of_rank", ["os._exit(9)", "os.kill(os.getpid(), signal.SIGKILL)", "1 / 0"])
def test_a_busy_process_that_a_rank_has_started_ends_with_it(tmp_path, end_of_rank):
    """It has left the rank's session, and nobody told it anything."""
    body = f"""
import subprocess
busy = "import os; os.setsid()\\nwhile True: pass"
process = subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
Path(sys.argv[1]).write_text(str(process.pid))
{end_of_rank}
"""
    code, _, _ = end(start(body, tmp_path / "pid"))
    pid = int((tmp_path / "pid").read_text())
    try:
        assert code == 3
        assert gone(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_output_is_not_lost():
    code, output, errors = end(start("print('x' * 100000); sys.stderr.write('y'); board.done(); return 4"))
    assert (code, output, errors) == (4, "x" * 100000 + "\n", "y")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_signals_are_passed_on(tmp_path, name):
    body = """
Path(sys.argv[1]).write_text("ready")
while flag.received is None:
    time.sleep(0.01)
print(flag.received)
board.done()
return 75
"""
    process = start(body, tmp_path / "ready")
    wait_for_file(tmp_path / "ready")
    time.sleep(0.2)  # the parent's handlers
    process.send_signal(signal.Signals[name])
    assert end(process) == (75, f"{name}\n", "")


def test_many_signals_are_harmless(tmp_path):
    body = """
Path(sys.argv[1]).write_text("ready")
time.sleep(1.0)
board.done()
return 0
"""
    process = start(body, tmp_path / "ready")
    wait_for_file(tmp_path / "ready")
    time.sleep(0.2)
    for _ in range(20):
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.01)
    assert end(process) == (0, "", "")


def test_a_signal_that_came_before_the_rank_started_reaches_it():
    program = PROGRAM.replace("flag.install()", "flag.install(); os.kill(os.getpid(), signal.SIGUSR1)")
    body = "    print(flag.received); board.done(); return 75"
    done = subprocess.run(
        [sys.executable, "-c", program.format(body=body, options="")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (75, "SIGUSR1\n")


def test_the_rank_dies_with_its_supervisor(tmp_path):
    process = start("Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)", tmp_path / "pid")
    child = int(wait_for_file(tmp_path / "pid"))
    assert Path(f"/proc/{child}").exists()
    process.kill()
    process.communicate()
    assert gone(child)


def test_the_child_ignoring_signals_is_not_the_supervisors_end(tmp_path):
    body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(1.0)
board.done()
return 0
"""
    process = start(body, tmp_path / "pid")
    wait_for_file(tmp_path / "pid")
    time.sleep(0.2)
    process.terminate()
    assert end(process)[0] == 0


class TestBoard:
    def test_nothing_yet(self):
        board = Board()
        assert (board.is_done, board.who(), board.progress(), board.run_dir) == (False, {}, "", None)
        assert board.line("died") == "hpcrl: rank (during start-up) died"

    def test_shorter_texts_replace_longer_ones(self):
        board = Board()
        board.report("a long progress report")
        board.report("short")
        board.identify(role="learner", role_rank=10, rank=100, node="a-long-name")
        board.identify(role="learner", role_rank=0, rank=1, node="n")
        assert board.line("died") == "hpcrl: learner 0 (rank 1 on n) died; last progress: short"

    def test_texts_that_are_too_long_spoil_nothing(self):
        board = Board()
        board.identify(role="actor", role_rank=1, rank=2, node="n", run_dir="/runs/one")
        board.report("\u00e4" * 3000)
        assert not board.is_done
        assert board.who()["run_dir"] == "/runs/one"
        assert board.progress().startswith("\u00e4" * 500) and len(board.progress()) < 600
        board.identify(role="actor", role_rank=1, rank=2, node="n", run_dir="x" * 5000)
        assert board.progress().startswith("\u00e4" * 500)

    def test_beats_begin_when_told_and_spoil_nothing(self):
        board = Board()
        board.beat()
        assert board.beats == 0
        board.begin()
        board.report("\u00e4" * 3000)
        seen = [board.beats]
        for _ in range(300):
            board.beat()
            seen.append(board.beats)
        assert seen == list(range(1, 302))
        assert board.progress().startswith("\u00e4" * 500)
        assert not board.is_done

    def test_a_child_writes_and_the_parent_reads(self):
        board = Board()
        child = os.fork()
        if child == 0:
            board.report("from the child")
            board.begin()
            board.beat()
            board.done()
            os._exit(0)
        os.waitpid(child, 0)
        assert (board.is_done, board.progress(), board.beats) == (True, "from the child", 2)


UNDER_SRUN = """
import os, signal, sys, time
from hpcrl.launch import supervise
def end_of_the_step(seconds):
    sys.stderr.write(f"waits {seconds:.0f} s")
    os.kill(os.getpid(), signal.SIGTERM)
supervise.time.sleep = end_of_the_step
code = supervise.leave(int(sys.argv[1]), all_ranks_leave=True)
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("code", "rank", "waits"),
    [(75, 0, ""), (75, 2, ""), (2, 0, "waits 1 s"), (2, 2, "waits 10 s"), (0, 2, "")],
)
def test_the_end_of_a_step_of_slurm_does_not_change_the_code(code, rank, waits):
    """srun sends SIGTERM to all as soon as one has left; of those that refuse, rank 0 must be that one.

    It leaves a moment for those that do not hear signals yet.
    """
    done = subprocess.run(
        [sys.executable, "-c", UNDER_SRUN, str(code)],
        env=os.environ | {"SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (code, waits)


@pytest.mark.parametrize(("mortal", "code"), [(True, 0), (False, -signal.SIGKILL)])
def test_where_the_others_go_on(tmp_path, mortal, code):
    """A rank they can do without leaves without a fault; one they need is seen to be killed."""
    body = IDENTIFY + f"board.identify(mortal={mortal}, **board.who(), run_dir={str(tmp_path)!r})\n"
    process = start(body + "os.kill(os.getpid(), signal.SIGKILL)", options=", others_go_on=True")
    found, _, errors = end(process)
    assert found == code
    assert errors.startswith(f"{PLACE}was killed by SIGKILL{PROGRESS}")
    assert ("the others go on" in errors) == mortal
    assert (tmp_path / "status.json").exists() != mortal


def test_a_rank_that_dies_before_they_all_are_there_ends_the_job():
    """Its launcher is told: here the shell that started it."""
    inner = PROGRAM.format(body="    os.kill(os.getpid(), signal.SIGKILL)", options=", others_go_on=True")
    outer = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    ended = subprocess.run([sys.executable, "-c", outer, inner], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGTERM
    assert "(during start-up) was killed by SIGKILL" in ended.stderr
