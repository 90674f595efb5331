"""`hpcrl diagnose` on real runs: clean ones, live and killed ones, with a slow hop, with a made fault."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from hpcrl.diagnose.verdict import diagnose
from tests.system.support import FOREVER, TOP, TOY, WITH_TESTS, run, start

CARTPOLE = f"{TOP / 'jobs/cartpole.py'}"
IN_STEP = TOY | {
    "scheme": "synchronous",
    "algorithm": {"name": "ppo", "unroll_length": 8, "epochs": 1, "num_minibatches": 1},
}


def rules(found):
    return [rule.name for rule, _ in found.findings]


def test_a_clean_run_of_one_process(tmp_path):
    """Short, but it learns: nothing is wrong, and something is its bottleneck."""
    ended = run(tmp_path, "budget.env_steps=45000", recipe=f"{CARTPOLE}:ppo")
    assert ended.code == 0, ended.stderr
    command = [sys.executable, "-m", "hpcrl", "diagnose", ended.run_dir, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TOP)
    said = json.loads(done.stdout)
    assert (done.returncode, said["findings"], said["status"]) == (0, [], "finished")
    assert said["bottleneck"]["rank"] == "worker 0" and 0 < said["bottleneck"]["share"] <= 1
    assert f"hpcrl diagnose {ended.run_dir}" in ended.describe()["next_commands"]


def test_a_live_run_and_the_same_killed(tmp_path):
    with start(tmp_path, FOREVER) as running:
        running.until_updates(60)
        run_dir = running.run_dir
        live = diagnose(run_dir)
        running.kill_everything()
    assert live.view.status["status"] == "running" and "ended" not in rules(live)
    assert "reset_steps" not in {**live.unknown, **dict.fromkeys(rules(live))}
    killed = diagnose(run_dir)
    assert rules(killed)[0] == "ended" and len(killed.view["updates"]) >= len(live.view["updates"])


def test_attempts_with_other_packages(tmp_path):
    """The second one finds another version of a package in front of the one that is installed."""
    other = tmp_path / "site/pydantic-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: pydantic\nVersion: 0.0.1\n")
    first = run(tmp_path, "storage.run_dir=runs/it")
    assert first.code == 0 and "software" not in rules(diagnose(first.run_dir)), first.stderr
    again = run(
        tmp_path,
        "budget.env_steps=800",
        recipe="runs/it",
        resume="must",
        environ={"PYTHONPATH": str(other.parent)},
    )
    assert again.code == 0, again.stderr
    (said,) = [finding.what for rule, finding in diagnose(first.run_dir).findings if rule.name == "software"]
    assert "attempt 2 ran with other packages" in said and "-> 0.0.1" in said


@pytest.mark.faults
def test_a_learner_that_stands_still_while_actors_go_on(tmp_path):
    """For a minute: nobody watches over it, and the bound lets them."""
    slow = ("env.id=slow", 'env.kwargs={"seconds": 0.05}', "lag.max_lag=300", "faults.stall_timeout_s=null")
    with start(tmp_path, FOREVER, *slow) as running:
        running.until_updates(5)
        os.kill(running.pids()["learner 0"], signal.SIGSTOP)
        assert "stalled" not in rules(diagnose(running.run_dir))
        running.until(lambda: "stalled" in rules(diagnose(running.run_dir)), 180.0)
        running.kill_everything()


PER_STEP = ("env.recv", "env.send", "algorithm.act", "trajectory.write")
PER_UPDATE = ("algorithm.update", "reducer.mean_gradients", "optimizer.step")
ON_THE_WAY = ("stream.send", "policy.fetch", "replay.insert", "replay.sample", "publisher.publish")
LONG = ("env.engine=custom", "env.id=tests.system.diagnose_envs:make_long")
SELDOM = "storage.flush_interval_s=1.0"
"""A busy disk would be the slowest hop of the rank that writes."""
LAYOUTS = {
    "pipeline": (TOY, (SELDOM,), PER_STEP + ON_THE_WAY + PER_UPDATE + ("evaluation",)),
    "synchronous": (IN_STEP, ("ranks.workers=2", SELDOM), PER_STEP + PER_UPDATE),
}
CASES = [(layout, hop) for layout, (_, _, hops) in LAYOUTS.items() for hop in hops]


@pytest.fixture(scope="module")
def delay_s(tmp_path_factory):
    """10 ms; more where the machine is so busy that one hop takes half as long of every update by itself."""
    longest = 0.0
    for layout, (recipe, settings, _) in LAYOUTS.items():
        ended = run(tmp_path_factory.mktemp(layout), "budget.env_steps=4000", *settings, recipe=recipe)
        assert ended.code == 0, ended.stderr
        times = ended.table("timers")
        inside = times[np.isin(times["hop"], [hop.encode() for hop in PER_STEP + PER_UPDATE])]
        longest = max(longest, float(inside["own_s"].max() / len(ended.table("updates"))))
    return max(0.01, 2 * longest)


@pytest.mark.faults
@pytest.mark.parametrize(("layout", "hop"), CASES)
def test_a_slow_hop_is_named_first(tmp_path, delay_s, layout, hop):
    """A delay in one hop after the other; one of 10 ms where the rest of an update takes less."""
    recipe, settings, _ = LAYOUTS[layout]
    if hop == "evaluation":
        settings = (*settings, *LONG)
    updates = 20 if hop == "evaluation" else 40 if hop in PER_STEP else 150
    delay = "profile.delay_s=" + json.dumps({hop: delay_s})
    budget = f"budget.env_steps={40 * updates}"
    ended = run(tmp_path, delay, budget, *settings, recipe=recipe, timeout_s=300, environ=WITH_TESTS)
    assert ended.code == 0, ended.stderr
    found = diagnose(ended.run_dir).bottleneck
    assert found.hop == hop, (delay_s, found.evidence, found.hops)


DROPS = (
    *("ranks.actors=2", "algorithm.batch_trajectories=1", "env.engine=custom"),
    "env.id=tests.system.timed_envs:make_straggler",
)
MADE = "tests.system.diagnose_envs:"
NAN_REWARDS = 'env.kwargs={"env": {"id": "counting", "engine": "toy"}}'
FAULTS = {
    "clipping": (
        f"{CARTPOLE}:ppo",
        ("algorithm.learning_rate=0.02", "algorithm.epochs=20", "budget.env_steps=60000"),
    ),
    "off_policy": (
        f"{CARTPOLE}:impala",
        ("algorithm.learning_rate=0.05", "lag.max_lag=4", "env.num_envs=64", "budget.env_steps=150000"),
    ),
    "entropy": (
        f"{CARTPOLE}:ppo",
        ("algorithm.learning_rate=0.1", "algorithm.entropy_coefficient=0", "budget.env_steps=60000"),
    ),
    "value": (TOY, ("algorithm.learning_rate=1e-6", "budget.env_steps=3000")),
    "nonfinite": (TOY, ("env.engine=custom", "env.id=hpcrl.envs:make_with_nan_rewards", NAN_REWARDS)),
    "reset_steps": (TOY, ("env.engine=custom", f"env.id={MADE}make_same_step", "budget.env_steps=2000")),
    "odd_actor": (
        IN_STEP,
        (
            "ranks.workers=3",
            "env.engine=custom",
            f"env.id={MADE}make_odd",
            "budget.env_steps=3000",
        ),
    ),
    "dropped": (TOY, (*DROPS, "lag.overdue=drop", 'env.kwargs={"seconds": 0.2}')),
    "uneven": (TOY, (*DROPS, "lag.max_lag=8", 'env.kwargs={"seconds": 0.05}', "budget.env_steps=3000")),
    "weights": (TOY, ("ranks.learners=2", f"model.torso={MADE}Drifting", "evaluation.episodes=0")),
    "priorities": (
        TOY
        | {
            "algorithm": {"name": "apex", "batch_size": 16, "n_step": 2},
            "replay": {"min_size": 100, "sampling": "prioritized"},
        },
        ("env.engine=custom", f"env.id={MADE}make_huge", "evaluation.episodes=0"),
    ),
    "limiter": (
        TOY | {"algorithm": {"name": "dqn", "batch_size": 16}, "replay": {"min_size": 100}},
        ("env.id=slow", 'env.kwargs={"seconds": 0.05}', "budget.env_steps=700"),
    ),
}


@pytest.mark.faults
@pytest.mark.parametrize("rule", FAULTS)
def test_a_rule_fires_on_a_run_made_to_show_its_fault(tmp_path, rule):
    recipe, settings = FAULTS[rule]
    ended = run(tmp_path, *settings, recipe=recipe, environ=WITH_TESTS, timeout_s=300)
    assert ended.code == (4 if rule in ("nonfinite", "priorities") else 0), ended.stderr
    found = diagnose(ended.run_dir)
    assert rule in rules(found), (rules(found), found.unknown)


@pytest.mark.faults
@pytest.mark.parametrize(("name", "settings"), [("impala", ("budget.env_steps=500000",)), ("ppo", ())])
def test_no_rule_fires_on_a_clean_run(tmp_path, name, settings):
    ended = run(tmp_path, *settings, recipe=f"{CARTPOLE}:{name}", timeout_s=300)
    assert ended.code == 0, ended.stderr
    found = diagnose(ended.run_dir)
    assert [finding.what for _, finding in found.findings] == []
    assert found.unknown == {}
