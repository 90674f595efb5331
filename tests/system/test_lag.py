"""The lag contract in real runs, and what waiting costs."""

import time

import pytest

from hpcrl.audit.verdict import audit
from tests.system.support import FOREVER, TOY, WITH_TESTS, cpu_seconds, lags, run, start

SLOW_LEARNER = TOY | {
    "env": {"id": "counting", "engine": "toy", "num_envs": 2},
    "algorithm": {"name": "ppo", "unroll_length": 4, "epochs": 20, "num_minibatches": 2},
    "budget": {"env_steps": 300},
}


@pytest.mark.parametrize(("max_lag", "slots"), [(0, 2), (1, 6), (4, 2)])
def test_actors_that_could_run_away_are_held_back(tmp_path, max_lag, slots):
    """The learner takes twenty passes over what an actor makes in no time; the queue fills up to the bound."""
    settings = (f"lag.max_lag={max_lag}", f"comm.slots={slots}")
    ended = run(tmp_path, *settings, recipe=SLOW_LEARNER)
    assert ended.code == 0, ended.stderr
    seen = lags(ended)
    assert seen[0] == 0 and seen[-1] == max_lag
    rows = ended.table("lag")
    late = rows["env_steps"][rows["lag"] == max_lag].sum() / rows["env_steps"].sum()
    assert late > 0.5  # back-pressure is the rule here, not an accident


def test_slow_actors_never_exceed_it_either(tmp_path):
    """Two actors of one queue each, which the learner always waits for."""
    settings = ("ranks.actors=2", "ranks.replay=2", "budget.env_steps=300")
    ended = run(tmp_path, "env.id=slow", 'env.kwargs={"seconds": 0.01}', *settings)
    assert ended.code == 0, ended.stderr
    assert lags(ended)[-1] <= 1
    assert ended.table("updates")["lag_max"].max() <= 1


@pytest.mark.parametrize(("overdue", "seconds"), [("wait", 0.03), ("drop", 0.2)], ids=["wait", "drop"])
def test_a_straggler_is_waited_for_or_dropped(tmp_path, overdue, seconds):
    """One actor is far too slow for batches of one trajectory; nothing is ever dropped unasked."""
    settings = (
        *(f"lag.overdue={overdue}", "ranks.actors=2", "algorithm.batch_trajectories=1"),
        *("env.engine=custom", "env.id=tests.system.timed_envs:make_straggler"),
        f'env.kwargs={{"seconds": {seconds}}}',
    )
    ended = run(tmp_path, *settings, environ=WITH_TESTS)
    assert ended.code == 0, ended.stderr
    assert lags(ended)[-1] <= 1
    events = ended.table("events")
    dropped = events[events["kind"] == b"dropped_trajectory"]
    assert (len(dropped) > 0) == (overdue == "drop")
    assert all(b"of actor 1: too old for update" in text for text in dropped["text"])
    assert all(dropped["count"] >= 1)
    summary = ended.describe()
    assert int(ended.table("lag")["env_steps"].sum()) == summary["env_steps"]
    punctual, late = summary["actors"]
    assert late["dropped"] == dropped["count"].sum() and punctual["dropped"] == 0
    if (
        overdue == "drop"
    ):  # what the straggler would have shown the learner is under-represented, and that is said
        assert late["trained_fraction"] < late["fair_fraction"] / 2
    assert audit(ended.run_dir).proved


def test_publishing_every_second_update(tmp_path):
    """Versions are even, and the lag counts updates, not publications."""
    ended = run(tmp_path, "lag.publish_every_updates=2", "lag.max_lag=2", "budget.env_steps=1000")
    assert ended.code == 0, ended.stderr
    assert set(ended.table("episodes")["parameter_version"] % 2) == {0}
    assert set(lags(ended)) <= {0, 1, 2}
    assert max(lags(ended)) >= 1


def test_ranks_that_wait_leave_the_cores_alone(tmp_path):
    """The environment takes a second per env_step; for five of them nobody has anything to do."""
    settings = ("env.id=slow", 'env.kwargs={"seconds": 1.0}', "algorithm.unroll_length=1")
    with start(tmp_path, FOREVER, *settings) as running:
        running.until_updates(1)
        pids = running.pids()
        before = {role: cpu_seconds(pid) for role, pid in pids.items()}
        time.sleep(5)
        used = {role: cpu_seconds(pid) - before[role] for role, pid in pids.items()}
    assert max(used.values()) < 0.5, used
