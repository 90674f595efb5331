"""Batches that are trained on several times: how often, how old, and over an interruption."""

import signal

import numpy as np
import pytest

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
PIPELINE = ("deterministic=true", "ranks.learners=2")  # the second learner has no trajectories
IN_STEP = ("scheme=synchronous",)


@pytest.mark.parametrize(("scheme", "oldest"), [(PIPELINE, 5), (IN_STEP, 4)], ids=["pipeline", "in step"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, scheme, oldest):
    whole = run(tmp_path / "whole", *scheme, recipe=REUSED)
    updates, lag = whole.table("updates"), whole.table("lag")
    assert updates["batch_use"].tolist() == [1 + i % 6 // 2 for i in range(len(updates))]
    assert lags(whole)[-1] == oldest
    new = np.isin(lag["update"], updates["update"][updates["batch_use"] == 1])
    assert lag["env_steps"][new].sum() == whole.describe()["env_steps"] == updates["env_steps"][-1]
    with start(tmp_path, *scheme, SLOW, "storage.run_dir=runs/it", recipe=REUSED) as running:
        running.until_updates(4)
        running.process.send_signal(signal.SIGTERM)
        stopped = running.wait()
    assert (stopped.code, stopped.describe()["updates"] % 6) == (75, 0), stopped.stderr
    resumed = run(tmp_path, recipe="runs/it", resume="must")
    assert resumed.weights() == whole.weights()
    assert audit(resumed.run_dir).proved


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
