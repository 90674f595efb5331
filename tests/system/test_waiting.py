"""A rank with nothing to do leaves the cores to the others, and what it holds still reaches the disk."""

import time

from tests.system.support import FOREVER, cpu_seconds, start

SLEEPING = ("env.id=slow", 'env.kwargs={"seconds": 20}', "env.num_envs=2", FOREVER)
"""No env_step ends while the test looks: nothing travels."""


def test_rows_reach_the_file_while_no_others_follow(tmp_path):
    with start(tmp_path, *SLEEPING) as running:
        running.until(lambda: running.run_dir is not None and len(running.pids()) == 3, timeout_s=15)


def test_ranks_that_wait_use_little_cpu(tmp_path):
    with start(tmp_path, *SLEEPING) as running:
        running.until(lambda: running.run_dir is not None and len(running.pids()) == 3, timeout_s=15)
        time.sleep(2)  # start-up is over
        pids = running.pids()
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(5)
        used = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    assert all(seconds < 0.5 for seconds in used.values()), used
