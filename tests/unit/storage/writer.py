"""A process that writes a result file and tells, on standard output, what it has done. Made to be killed.

arguments: FILE INTERVAL_S ROWS_PER_APPEND APPENDS [PLACE NUMBER]
PLACE is "call": killed as it enters that call of a flush, counted over all; or "byte": in the middle of the write that
makes the file longer than that.
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import h5py
import numpy as np

from hpcrl.storage import TABLES, RunLog


def say(text):
    os.write(1, f"{text}\n".encode())  # one call per line: a kill cannot cut what was said before


def main(path, interval_s, rows_per_append, appends):
    say("ready")
    log = RunLog(Path(path), config_json="{}", provenance={}, attempt=1, flush_interval_s=interval_s)
    done = 0
    for _ in range(appends):
        update = done + np.arange(rows_per_append)
        log.append("updates", TABLES["updates"].rows(len(update), **updates(update)))
        log.append("events", TABLES["events"].rows(len(update), **events(update)))
        done += rows_per_append
        say(f"appended {done} {time.perf_counter()!r}")
        if log.maybe_flush():
            say(f"flushed {done}")
    log.close()
    say("closed")


def updates(update):
    return {"update": update, "env_steps": update * 7, "time_s": update * 0.5, "applied": update % 3 == 0}


def events(update):
    return {"kind": "started", "count": update, "text": [f"event {number} {'x' * 200}" for number in update]}


def die_in_call(number):
    seen = []
    for real in (h5py.Dataset.resize, h5py.Dataset.__setitem__, h5py.Dataset.flush):

        def call(self, *arguments, real=real):
            seen.append(real)
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *arguments)

        setattr(h5py.Dataset, real.__name__, call)


def die_at_byte(number):
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))


if __name__ == "__main__":
    if len(sys.argv) > 5:
        {"call": die_in_call, "byte": die_at_byte}[sys.argv[5]](int(sys.argv[6]))
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
