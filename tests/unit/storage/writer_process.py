"""The process of writer.py, and what it has written."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

WRITER = Path(__file__).with_name("writer.py")


def start_writer(run, said, interval_s=0.0, rows=1, appends=1_000_000, word=b"ready", place=()):
    """It has said `word` by now; or it has ended, if it was to at a `place`."""
    numbers = [interval_s, rows, appends, *place]
    command = [sys.executable, WRITER, run / "attempts/001.h5", *numbers]
    with said.open("wb") as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out)
    while word not in said.read_bytes():
        if process.poll() is not None:
            assert place, "the writer died at start"
            break
        time.sleep(0.005)
    return process


def assert_whole(rows):
    """Each row is exactly what the writer wrote at this place."""
    expected = np.arange(len(rows))
    assert (rows["update"] == expected).all()
    assert (rows["env_steps"] == expected * 7).all()
    assert (rows["time_s"] == expected * 0.5).all()
    assert (rows["applied"] == (expected % 3 == 0)).all()
