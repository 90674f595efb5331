import select
import subprocess
import sys
import time

CODE = """
import sys, time
from hpcrl.launch.output import wait_until_read
sys.stdout.write("last words")
start = time.perf_counter()
wait_until_read(timeout_s=float(sys.argv[1]))
sys.stderr.write(str(time.perf_counter() - start))
"""


def run(timeout_s: float, read_after_s: float) -> float:
    """Seconds that a process with something in its stdout pipe waited."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(timeout_s)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    # Until its output is there the process has not begun to wait.
    select.select([process.stdout], [], [])
    time.sleep(read_after_s)
    assert process.stdout.read(10) == b"last words"
    waited = float(process.stderr.read())
    process.wait()
    return waited


def test_waits_until_the_reader_has_taken_it() -> None:
    assert 0.4 <= run(timeout_s=60.0, read_after_s=0.5) < 60.0


def test_a_reader_that_never_comes_is_not_waited_for_for_ever() -> None:
    assert run(timeout_s=0.2, read_after_s=1.0) < 1.0
