"""A process that writes a result file and tells, on standard output, what it has done. Made to be killed."""

import os
import sys
import time
from pathlib import Path

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


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
