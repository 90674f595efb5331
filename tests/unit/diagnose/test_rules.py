"""Each rule fires on its fault, with a change that the configuration allows, and on nothing else."""

import numpy as np
import pytest

from hpcrl.config import RunConfig
from hpcrl.diagnose.finding import SEVERITIES
from hpcrl.diagnose.rules import RULES
from hpcrl.diagnose.verdict import examine
from hpcrl.storage.runlog import AttemptHead
from tests.unit.diagnose.support import (
    ACTORS,
    REPLAYED,
    SYNCHRONOUS,
    UPDATES,
    episodes,
    events,
    make_config,
    make_view,
    rows,
    seats,
    timers,
    trajectories,
    updates,
)

NAN = float("nan")


def shares(*trained, dropped=()):
    fair = 1 / len(trained)
    return [
        {
            "actor": actor,
            "trained_fraction": share,
            "fair_fraction": fair,
            "dropped": dict(dropped).get(actor, 0),
        }
        for actor, share in enumerate(trained)
    ]


def from_update(first, value, well):
    """`well` before an update, `value` from there on."""
    return np.where(np.arange(1, UPDATES + 1) >= first, value, well)


def replay(**columns):
    """Of one shard, a row per update."""
    well = {"refused_priorities": 0, "actors_wait_s": 0.0, "learners_wait_s": 0.0}
    return rows("replay", UPDATES, update=np.arange(1, UPDATES + 1), role_rank=0, **{**well, **columns})


def replayed(**columns):
    """A run with a replay memory: nothing of the lag contract, no importance weights."""
    config = make_config(**REPLAYED)
    table = updates(entropy=NAN, log_rho_p90=NAN, clip_fraction=NAN)
    plan = seats("replay", "actor", "actor", "learner")
    return make_view(
        config, updates=table, ranks=plan, trajectories=rows("trajectories", 0), replay=replay(**columns)
    )


def four_actors(**more):
    plan = seats("replay", "actor", "actor", "actor", "actor", "learner")
    tables = {"ranks": plan, "episodes": episodes(actors=4), "trajectories": trajectories(400, 4), **more}
    return make_view(make_config(**ACTORS), **tables)


def one_is_odd():
    table = episodes(actors=4)
    table["episode_return"][table["actor"] == 2] = 5.0
    return four_actors(episodes=table)


def two_attempts(*versions):
    return [AttemptHead("x", number, 0, {}, {"versions": one}) for number, one in enumerate(versions, 1)]


CLEAN = {
    "impala": make_view,
    "ppo": lambda: make_view(
        make_config(**SYNCHRONOUS),
        updates=updates(lag_min=0, lag_mean=0.0, lag_max=0),
        episodes=episodes(actors=2),
        ranks=seats("worker", "worker"),
    ),
    "dqn": replayed,
    "four actors": four_actors,
    "running": lambda: make_view(status="running"),
    "evaluating for long": lambda: make_view(
        status="running",
        timers=timers({("actor", 0): {"env.recv": 9.0, "end.wait": 300.0}}, 309.0, time_s=309.0),
    ),
    "stopped": lambda: make_view(status="stopped"),
    "annealed, of a Gaussian policy": lambda: make_view(
        updates=updates(entropy=np.linspace(1.4, -2.0, UPDATES))
    ),
    "resumed with the same packages": lambda: make_view(
        heads=two_attempts({"torch": "2.4"}, {"torch": "2.4"})
    ),
    "one process takes turns at the memory": lambda: make_view(
        make_config(**REPLAYED),
        ranks=seats("replay", "actor", "learner", one_rank=True),
        trajectories=rows("trajectories", 0),
        replay=replay(actors_wait_s=np.linspace(0, 9.9, UPDATES)),
    ),
    "solved: all returns are equal": lambda: make_view(
        updates=updates(explained_variance=from_update(60, -0.5, 0.9), value_loss=from_update(60, 1e-4, 0.1))
    ),
    "a few dropped": lambda: make_view(
        make_config(**ACTORS, lag={"overdue": "drop"}),
        shares=shares(0.25, 0.25, 0.25, 0.25, dropped={1: 3}),
        trajectories=trajectories(400, 4),
    ),
}

FAULTS = {
    "ended": lambda: make_view(status={"status": "killed", "exit_code": None, "cause": "its process ended"}),
    "stalled": lambda: make_view(status="running", episodes=episodes(time_s=np.linspace(0.1, 200.0, 1500))),
    "damaged": lambda: make_view(damage="attempts/001.h5 cannot be read as a result file"),
    "weights": lambda: make_view(
        learners=rows("learners", 2, role_rank=[0, 1], update=100, weights_sha256=["a", "b"])
    ),
    "lag_bound": lambda: make_view(lag=rows("lag", 2, update=100, lag=[1, 2], env_steps=[400, 85])),
    "nonfinite": lambda: make_view(updates=updates(applied=from_update(60, False, True))),
    "priorities": lambda: replayed(refused_priorities=np.arange(UPDATES)),
    "reset_steps": lambda: make_view(updates=updates(valid_fraction=1.0)),
    "crashes": lambda: make_view(
        events=events("actor_died", role="actor", role_rank=3, text="on n1, after version 7")
    ),
    "odd_actor": one_is_odd,
    "dropped": lambda: make_view(
        make_config(**ACTORS, lag={"overdue": "drop"}),
        shares=shares(0.3, 0.3, 0.3, 0.1, dropped={3: 60}),
        trajectories=trajectories(400, shares=[3, 3, 3, 1]),
    ),
    "uneven": lambda: four_actors(
        shares=shares(0.3, 0.3, 0.3, 0.1), trajectories=trajectories(400, shares=[3, 3, 3, 1])
    ),
    "off_policy": lambda: make_view(
        make_config(lag={"max_lag": 8}), updates=updates(lag_mean=7.0, log_rho_p90=1.2)
    ),
    "clipping": lambda: make_view(
        make_config(**SYNCHRONOUS), updates=updates(clip_fraction=from_update(30, 0.5, 0.1))
    ),
    "entropy": lambda: make_view(updates=updates(entropy=from_update(40, 0.01, 0.69))),
    "value": lambda: make_view(updates=updates(explained_variance=-0.3, value_loss=0.2)),
    "software": lambda: make_view(heads=two_attempts({"torch": "2.4"}, {"torch": "2.5"})),
    "disk": lambda: make_view(events=events("disk_refuses", text="No space left on device")),
    "limiter": lambda: replayed(learners_wait_s=np.linspace(0, 8.0, UPDATES)),
}

CHANGES = {
    "ended": "hpcrl run runs/made --resume must",
    "stalled": "faults.stall_timeout_s=95",
    "damaged": "hpcrl verify runs/made",
    "weights": "comm.debug=true",
    "lag_bound": "hpcrl audit runs/made",
    "nonfinite": "algorithm.learning_rate=0.0001",
    "priorities": "algorithm.learning_rate=0.0001",
    "reset_steps": "hpcrl check envpool:CartPole-v1",
    "crashes": "hpcrl check envpool:CartPole-v1",
    "odd_actor": "hpcrl check envpool:CartPole-v1 on n1: try environments 8 to 11",
    "dropped": "lag.overdue=wait",
    "uneven": "algorithm.batch_trajectories=4",
    "off_policy": "lag.max_lag=3",
    "clipping": "algorithm.learning_rate=0.0001",
    "entropy": "algorithm.entropy_coefficient=0.03",
    "value": "algorithm.learning_rate=0.0001",
    "software": "pip install torch==2.4",
    "disk": "df -h runs/made",
    "limiter": "ranks.actors=4",
}


def test_every_rule_has_a_fault_here_and_its_own_name():
    names = [rule.name for rule in RULES]
    assert sorted(names) == sorted(FAULTS) == sorted(CHANGES)
    assert {rule.severity for rule in RULES} == set(SEVERITIES)


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_run_has_no_findings(name):
    found = examine(CLEAN[name]())
    assert [(rule.name, finding.what) for rule, finding in found.findings] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_fires_on_its_fault_alone(name):
    view = FAULTS[name]()
    ((rule, finding),) = examine(view).findings
    assert rule.name == name
    assert finding.change.text.startswith(CHANGES[name])
    if finding.change.key:
        changed = RunConfig.parse(view.config).with_overrides([finding.change.text.partition(": ")[0]])
        assert changed.to_dict() != view.config


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("off_policy", "above 3.3 or below 0.3 ("),
        ("dropped", "60 of 460 trajectories were dropped as too old (lag.overdue=drop), most of actor 3"),
        (
            "nonfinite",
            "41 of 100 updates were not applied, since their gradient was not finite; the first is update 60",
        ),
        ("entropy", "1.4 % of the 0.69"),
        ("software", "torch 2.4 -> 2.5"),
        ("odd_actor", "actor 2: mean return 5"),
    ],
)
def test_a_finding_has_the_numbers_in_it(fault, part):
    ((_, finding),) = examine(FAULTS[fault]()).findings
    assert part in finding.what


def test_what_is_worst_comes_first():
    found = examine(
        make_view(
            events=events("disk_refuses", text="full"),
            updates=updates(explained_variance=-0.3, applied=from_update(90, False, True)),
        )
    )
    assert [rule.name for rule, _ in found.findings] == ["nonfinite", "value", "disk"]


def test_gradients_that_are_not_finite_from_the_first_update_on_are_the_environments():
    ((_, finding),) = examine(make_view(updates=updates(applied=from_update(1, False, True)))).findings
    assert "before anything was learned" in finding.what and finding.change.text.startswith("hpcrl check")


def test_a_run_that_failed_by_its_gradients_is_not_to_be_resumed():
    status = {"status": "failed", "exit_code": 4, "cause": "gradients were not finite"}
    found = examine(make_view(status=status, updates=updates(applied=from_update(98, False, True))))
    assert [rule.name for rule, _ in found.findings] == ["nonfinite"]


def test_data_on_policy_call_for_smaller_steps_not_for_less_lag():
    view = make_view(make_config(**SYNCHRONOUS), updates=updates(lag_mean=0.0, log_rho_p90=1.2))
    ((rule, finding),) = examine(view).findings
    assert rule.name == "off_policy" and finding.change.key == "algorithm.learning_rate"


def test_little_lag_is_not_blamed():
    view = make_view(make_config(lag={"max_lag": 8}), updates=updates(lag_mean=1.0, log_rho_p90=1.2))
    ((_, finding),) = examine(view).findings
    assert finding.change.key == "algorithm.learning_rate"


def test_a_policy_that_collapses_in_the_first_update_has_collapsed():
    ((rule, _),) = examine(make_view(updates=updates(entropy=from_update(2, 0.008, 0.09)))).findings
    assert rule.name == "entropy"


def test_a_value_that_is_hardly_learned_is_weighed_more():
    view = make_view(
        make_config(algorithm={"name": "impala", "value_coefficient": 0}),
        updates=updates(explained_variance=0.0),
    )
    ((_, finding),) = examine(view).findings
    assert (finding.change.key, finding.change.value) == ("algorithm.value_coefficient", 0.5)


def test_entropy_is_compared_with_that_of_the_first_policy_not_of_the_attempt():
    late = updates(entropy=0.03)
    assert examine(make_view(updates=late)).findings == []
    ((rule, _),) = examine(make_view(updates=late, initial=updates(3))).findings
    assert rule.name == "entropy"


def test_actors_that_the_limiter_holds_back_call_for_fewer_samples():
    ((_, finding),) = examine(replayed(actors_wait_s=np.linspace(0, 8.0, UPDATES))).findings
    assert (finding.change.key, finding.change.value) == ("replay.samples_per_insert", pytest.approx(3.1))


def test_too_short_a_run_says_what_cannot_be_told():
    table = updates(8, explained_variance=-0.3, clip_fraction=0.9, log_rho_p90=3.0, entropy=0.0)
    found = examine(make_view(updates=table, episodes=episodes(20)))
    assert found.findings == []
    assert found.unknown["value"] == "8 updates so far; 40 are needed"
    assert found.unknown["reset_steps"] == "20 episodes have ended; 50 are needed"
    assert {"off_policy", "clipping", "entropy", "bottleneck"} <= set(found.unknown)


def test_a_run_without_any_row_says_so():
    empty = {name: rows(name, 0) for name in ("updates", "episodes", "trajectories", "ranks")}
    found = examine(make_view(**empty))
    assert found.findings == [] and "bottleneck" in found.unknown
