"""Batches that are trained on several times, over an interruption; tests/mpi/test_resume_algorithms.py has more."""

import signal

from hpcrl.audit.verdict import audit
from tests.system.support import TOY, lags, run, start

REUSED = TOY | {
    "env": {"id": "chain", "engine": "toy", "num_envs": 5},
    "algorithm": {
        "name": "impact",
        "unroll_length": 8,
        "buffer_batches": 2,
        "batch_uses": 3,
        "target_update_updates": 5,
        "num_minibatches": 2,
    },
    "lag": {"max_lag": 5},
    "evaluation": {"episodes": 0},
    "budget": {"env_steps": 1200},
}
SLOW = 'env.kwargs={"seconds_per_step": 0.002}'


def test_a_stop_gives_up_what_was_to_be_used_again_where_order_does_not_count(tmp_path):
    with start(tmp_path, SLOW, "storage.run_dir=runs/it", recipe=REUSED, ranks=1) as running:
        running.until_updates(3)
        running.process.send_signal(signal.SIGTERM)
        stopped = running.wait()
    assert stopped.code == 75, stopped.stderr
    done = stopped.describe()["updates"]
    ended = run(tmp_path, recipe="runs/it", resume="must", ranks=1)
    assert ended.code == 0, ended.stderr
    assert ended.table("updates")["batch_use"][done] == 1
    assert lags(ended)[-1] <= 5 and audit(ended.run_dir).proved
