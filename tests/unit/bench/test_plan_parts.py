"""What a plan measures, on recipes that take next to nothing."""

import pytest

from hpcrl.bench.child import call
from hpcrl.bench.plan.calibrate import Rounds, calibration, combine, fewest, measure_rounds
from hpcrl.bench.plan.check import Measured
from hpcrl.bench.plan.costs import Cost
from hpcrl.bench.plan.model import Place, forecast
from hpcrl.bench.plan.parts import SLICES, measure_parts, timed
from hpcrl.comm.ranks import resize
from hpcrl.config import A3CConfig, DQNConfig, EnvConfig, PPOConfig, RanksConfig, ReplayConfig, RunConfig
from tests.unit.bench.plan_support import calibration as plain
from tests.unit.bench.plan_support import pipeline

TOY = EnvConfig(id="counting", engine="toy", num_envs=4)


def toy(algorithm, **other):
    return RunConfig(name="x", env=TOY, algorithm=algorithm, **other)


def ppo(**other):
    return toy(PPOConfig(unroll_length=4, epochs=3, num_minibatches=2), **other)


def dqn(**other):
    return toy(
        DQNConfig(batch_size=16), replay=ReplayConfig(capacity=400, min_size=40, tolerance=2.0), **other
    )


def measure(acting, learning):
    return measure_parts([run.to_dict() for run in acting], [run.to_dict() for run in learning], 0.01, 1)


def test_each_share_of_environments_and_batch_is_measured():
    two = ppo(ranks=RanksConfig(actors=2, learners=2))
    found = measure([ppo(), two], [ppo(), two])
    assert [set(one) for one in found["acting"]] == [{"environment", "inference", "collect"}] * 2
    assert [set(one) for one in found["learning"]] == [{"update"}] * 2
    assert found["sums"] == 3 * 2  # gradient steps
    assert found["memory"] == {}
    for one in (*found["acting"], *found["learning"]):
        for cost in one.values():
            assert 0 < cost["cpu_s"] <= cost["span_s"] + 1e-12


def test_a_replay_memory_is_measured_apart():
    found = measure([dqn()], [dqn()])
    assert set(found["memory"]) == {"insert", "sample", "sample_few"}
    assert found["sums"] == 1
    assert found["learning"][0]["update"]["cpu_s"] > 0


def test_gradients_are_measured_where_they_are_computed():
    run = toy(A3CConfig(unroll_length=4))
    found = measure([run], [run])
    assert found["acting"][0]["gradient"]["cpu_s"] > 0
    assert found["learning"] == [{}]


def test_sleep_is_part_of_the_span_alone():
    run = RunConfig(
        name="x",
        env=EnvConfig(id="chain", engine="toy", num_envs=2, kwargs={"seconds_per_step": 0.05}),
        algorithm=PPOConfig(unroll_length=2, num_minibatches=1),
    )
    step = measure([run], [])["acting"][0]["environment"]
    assert step["span_s"] >= 0.05 > step["cpu_s"]


def test_parts_take_turns():
    order = []
    works = {name: lambda name=name: order.append(name) for name in "ab"}
    timed(works, 0.0)
    assert order == ["a", "a", "b", "b", *"ab" * SLICES]  # warm, then once in each slice


class TestWhole:
    @pytest.fixture(scope="class")
    @staticmethod
    def whole():
        one = resize(dqn(), 1)
        return call(
            "hpcrl.bench.plan.whole:measure_whole",
            {"config": one.to_dict(), "seconds": 0.5},
            one_core=False,
        )

    def test_a_run_in_one_process_says_what_a_round_takes_and_leaves(self, whole):
        assert whole["updates"] >= 4
        assert whole["cpu_s"] > 0
        assert whole["hops"].keys() == {"stream.send", "publisher.publish"}
        assert whole["env_steps"] >= 40
        assert whole["checkpoint_bytes"].keys() == {"learner-0", "replay-0", "actor-0", "manifest"}
        assert whole["resident"]["replay"] < whole["resident"]["learner"] <= whole["resident"]["actor"]
        assert whole["parameters_bytes"] > 0 and whole["trajectory_bytes"] > 0

    def test_rounds_become_a_calibration(self, whole):
        one = resize(dqn(), 1)
        part = measure([one], [one])
        sums = [{"reduce": {"cpu_s": 1e-5, "span_s": 2e-5}, "agree": {"cpu_s": 1e-6, "span_s": 2e-6}}]
        cal = combine(one, [one], [one], [part] * 2, [whole] * 2, sums)
        assert cal.whole.cpu_s == whole["cpu_s"]
        assert cal.reduce == Cost(1e-5, 2e-5)
        assert cal.insert.cpu_s > 0 and cal.sample is not None and cal.update is not None
        assert cal.bytes["checkpoint/replay"] == whole["checkpoint_bytes"]["replay-0"]
        found = forecast(dqn(), cal, Place(1, 2))
        assert found.env_steps_per_s > 0
        in_one = forecast(dqn(), cal, Place(1, 2), num_ranks=1)
        # in one process the forecast is what was measured there
        assert in_one.round_s >= 0.99 * whole["cpu_s"]


def test_a_calibration_measures_each_size_once_per_round(monkeypatch):
    """What is measured of which splits; the processes are not started."""
    asked = []

    def no_call(function, arguments, *, one_core):
        asked.append((function.partition(":")[2], arguments))
        raise RuntimeError("enough")

    monkeypatch.setattr("hpcrl.bench.plan.calibrate.call", no_call)
    splits = [ppo(ranks=RanksConfig(actors=actors, learners=5 - actors)) for actors in (2, 3, 4)]
    with pytest.raises(RuntimeError, match="enough"):
        measure_rounds([one for one in splits if one.ranks.learners <= one.ranks.actors], 5, 1, 0.1)
    arguments = dict(asked)
    envs = [run["ranks"]["actors"] for run in arguments["measure_parts"]["acting"]]
    assert envs == [1, 4]  # of 4 environments and of 1: where one has most of 2, that lies between
    assert arguments["measure_whole"]["config"]["ranks"]["actors"] == 1


def test_what_ranks_take_from_each_other_is_seen_in_a_run_on_few_of_them(monkeypatch):
    """Twice as slow as its parts say: so is every other split, what sleeps aside; but not a run on one rank."""
    few = fewest(ppo(ranks=RanksConfig(actors=4, learners=2)))
    assert (few.ranks.actors, few.ranks.replay, few.ranks.learners) == (1, 1, 1)
    assert fewest(ppo(scheme="synchronous", ranks=RanksConfig(workers=4))).ranks.workers == 2
    single = ppo(scheme="synchronous").with_overrides(["env.num_envs=1"])
    assert fewest(single) is single
    monkeypatch.setattr("hpcrl.bench.plan.calibrate.combine", lambda *arguments: plain(act=0.08, sleep=0.02))
    alone = forecast(pipeline(), calibration([pipeline()], Rounds()), Place(1, 2))
    seen = Measured(alone.env_steps_per_s / 2, 1.0, 2.0, 1.0, 100, 3.0, {})
    found = calibration([pipeline()], Rounds(together=(seen,) * 3, waiting=(0.0,)))
    assert found.together == pytest.approx(2.0)
    assert forecast(pipeline(), found, Place(1, 2)).round_s == pytest.approx(2 * 0.08 + 0.02)
    in_one = [
        forecast(pipeline(), cal, Place(1, 2), 1).round_s for cal in (found, plain(act=0.08, sleep=0.02))
    ]
    assert in_one[0] == in_one[1]
