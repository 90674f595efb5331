"""P77: what a division of the ranks would do, from what its parts take."""

from dataclasses import replace

import pytest

from hpcrl.bench.plan.costs import Cost, Line, median_cost
from hpcrl.bench.plan.model import Place, forecast, preferred
from hpcrl.config import ConfigError
from tests.unit.bench.plan_support import calibration, pipeline, replayed, same, synchronous

MANY = Place(1, 64)


class TestLine:
    LINE = Line(((4.0, Cost(2.0, 4.0)), (1.0, Cost(1.0, 1.0)), (8.0, Cost(10.0, 8.0))))

    @pytest.mark.parametrize(
        ("size", "cpu_s", "span_s"), [(1, 1, 1), (2.5, 1.5, 2.5), (4, 2, 4), (6, 6, 6), (9, 12, 9)]
    )
    def test_between_and_beyond_its_points(self, size, cpu_s, span_s):
        assert self.LINE.at(size) == Cost(pytest.approx(cpu_s), pytest.approx(span_s))

    def test_one_point_is_a_proportion(self):
        assert Line(((4.0, same(2.0)),)).at(2) == same(1.0)

    def test_nothing_takes_less_than_nothing(self):
        assert Line(((4.0, same(1.0)), (8.0, same(3.0)))).at(1) == same(0.0)

    def test_the_median_of_rounds(self):
        rounds = [{"cpu_s": cpu_s, "span_s": 10 - cpu_s} for cpu_s in (1.0, 9.0, 2.0)]
        assert median_cost(rounds) == Cost(2.0, 8.0)


class TestPace:
    def test_on_one_rank_all_is_done_in_turn(self):
        cal = calibration(act=0.08, sleep=0.05, learn=0.04, message=0.01)
        found = forecast(pipeline(), cal, MANY, num_ranks=1)
        assert found.round_s == pytest.approx(0.08 + 0.05 + 0.04 + 4 * 0.01)
        assert (found.limit, found.num_ranks) == ("turns", 1)

    def test_actors_set_the_pace_where_they_take_longest(self):
        found = forecast(pipeline(), calibration(act=0.08, learn=0.04), MANY)
        assert (found.round_s, found.limit) == (pytest.approx(0.08), "actors")
        assert found.env_steps_per_s == pytest.approx(80 / 0.08)
        assert found.busy == {"replay": 0.0, "learner": pytest.approx(0.5), "actor": 1.0}
        assert found.lag_mean == 1

    def test_learners_set_the_pace_where_they_take_longest(self):
        found = forecast(pipeline(max_lag=3), calibration(act=0.04, learn=0.08), MANY)
        assert (found.round_s, found.limit) == (pytest.approx(0.08), "learners")
        assert found.lag_mean == 3  # actors are as far ahead as they may
        crowded = forecast(pipeline(max_lag=3), calibration(act=0.07, learn=0.08), Place(1, 1))
        assert (crowded.limit, crowded.lag_mean) == ("cores", 3)
        actors = forecast(pipeline(max_lag=3), calibration(act=0.08, learn=0.07), Place(1, 1))
        assert (actors.limit, actors.lag_mean) == ("cores", 1)

    def test_more_actors_share_the_environments(self):
        found = forecast(pipeline(actors=4), calibration(act=0.16, learn=0.01), MANY)
        assert found.round_s == pytest.approx(0.04)
        assert found.env_steps_per_s == pytest.approx(80 / 0.04)

    def test_what_acting_costs_for_any_number_of_environments_does_not_shrink(self):
        flat = Line(((2.0, same(0.08)), (8.0, same(0.08))))
        found = forecast(pipeline(actors=4), calibration(collect=flat), MANY)
        assert found.round_s == pytest.approx(0.08)

    @pytest.mark.parametrize("cores", [1, 2])
    def test_ranks_share_cores(self, cores):
        found = forecast(pipeline(actors=4), calibration(act=0.4, learn=0.1), Place(1, cores))
        assert (found.round_s, found.limit) == (pytest.approx(0.5 / cores), "cores")
        assert found.cores_used == pytest.approx(cores)

    def test_who_sleeps_needs_no_core(self):
        found = forecast(pipeline(actors=4), calibration(act=0.08, sleep=0.4, learn=0.02), Place(1, 1))
        # of a quarter of the environments: 0.02 s computed and 0.1 s slept, by all of them at once
        assert (found.round_s, found.limit) == (pytest.approx(0.12), "actors")

    def test_who_waits_polls(self):
        cal = calibration(act=0.3, learn=0.1, waiting=0.05)
        # the actor never waits, the learner two thirds of the time, the replay rank always
        found = forecast(pipeline(), cal, Place(1, 1))
        assert found.round_s == pytest.approx(0.4 / (1 - 0.05 * (2 / 3 + 1)))
        assert found.cores_used == pytest.approx(1.0)
        assert forecast(pipeline(), cal, Place(1, 2)).round_s == pytest.approx(0.3)

    def test_messages_cost_both_ends(self):
        found = forecast(pipeline(), calibration(act=0.08, learn=0.04, message=0.01), MANY)
        assert found.round_s == pytest.approx(0.09)
        assert found.busy["replay"] == pytest.approx(0.02 / 0.09)

    def test_without_lag_actors_and_learners_take_turns(self):
        found = forecast(pipeline(max_lag=0), calibration(act=0.08, learn=0.04), MANY)
        assert (found.round_s, found.limit, found.lag_mean) == (pytest.approx(0.12), "turns", 0)

    def test_in_turns_several_actors_still_share_the_cores(self):
        found = forecast(pipeline(actors=4, max_lag=0), calibration(act=0.08, learn=0.04), Place(1, 2))
        assert found.round_s == pytest.approx(0.08 / 2 + 0.04)

    def test_learners_divide_a_batch_and_sum(self):
        cal = calibration(act=0.01, learn=0.08, sums_per_batch=3, reduce=same(0.001), agree=same(0.002))
        found = forecast(pipeline(actors=2, learners=2), cal, MANY)
        assert found.round_s == pytest.approx(0.04 + 3 * 0.001 + 2 * 0.002, rel=0.01)

    def test_only_valid_env_steps_count(self):
        found = forecast(pipeline(), calibration(valid_fraction=0.5), MANY)
        assert found.env_steps_per_s == pytest.approx(40 / 0.08)

    def test_gradients_are_computed_where_they_are_sent(self):
        cal = calibration(gradient=Line(((8.0, same(0.1)),)))
        assert forecast(pipeline(), cal, MANY).round_s == pytest.approx(0.18)


class TestSynchronous:
    def test_every_rank_collects_and_learns(self):
        cal = calibration(act=0.08, learn=0.04)
        assert forecast(synchronous(), cal, MANY).round_s == pytest.approx(0.12)
        found = forecast(synchronous(workers=2), cal, MANY)
        assert (found.round_s, found.limit, found.lag_mean) == (pytest.approx(0.06), "workers", 0)
        assert found.env_steps_per_s == pytest.approx(80 / 0.06)

    def test_more_workers_than_cores_bring_nothing(self):
        cal = calibration(act=0.08, learn=0.04, waiting=0.05)  # but nobody waits
        assert forecast(synchronous(workers=4), cal, Place(1, 1)).round_s == pytest.approx(0.12)

    def test_two_nodes_have_twice_the_cores(self):
        cal = calibration(act=0.08, learn=0.04)
        one, two = (forecast(synchronous(workers=4), cal, Place(nodes, 1)) for nodes in (1, 2))
        assert one.round_s / two.round_s == pytest.approx(2, rel=0.05)  # less what crosses nodes


class TestReplayMemory:
    def cal(self, act, learn, keep=0.0):
        # the run in one process: an update's 2 env_steps are a 32nd of a trajectory
        return calibration(
            act=act,
            trajectories=1 / 32,
            update=Line(((32.0, same(learn)),)),
            learn=learn + keep,
            sample=Line(((32.0, same(keep)),)),
        )

    def test_learners_allow_so_many_env_steps(self):
        slow = self.cal(act=0.01, learn=0.02)
        often, seldom = (forecast(replayed(samples_per_insert=ratio), slow, MANY) for ratio in (16.0, 4.0))
        assert often.limit == seldom.limit == "learners"
        assert often.env_steps_per_s == pytest.approx(32 / 16 / 0.02)
        assert seldom.env_steps_per_s == pytest.approx(32 / 4 / 0.02)
        assert often.updates_per_s == seldom.updates_per_s == pytest.approx(50)

    def test_actors_may_be_the_slow_ones(self):
        found = forecast(replayed(), self.cal(act=6.4, learn=0.02), MANY)
        assert found.limit == "actors"
        assert found.env_steps_per_s == pytest.approx(64 / 6.4)

    def test_so_may_be_the_memory(self):
        found = forecast(replayed(), self.cal(act=0.01, learn=0.02, keep=0.03), MANY)
        assert (found.limit, found.round_s) == ("replay", pytest.approx(0.03))

    def test_lag_is_half_the_age_of_what_is_held(self):
        config = replayed()
        held = config.with_overrides(
            ["replay.capacity=2000", "replay.min_size=2000", "budget.env_steps=10000"]
        )
        found = forecast(held, self.cal(act=0.01, learn=0.02), MANY)
        assert found.lag_mean == pytest.approx(2000 / 2 / 2)

    def test_a_deterministic_run_takes_turns(self):
        found = forecast(replayed(deterministic=True), self.cal(act=0.64, learn=0.02), MANY)
        assert (found.limit, found.round_s) == ("turns", pytest.approx(0.02 + 0.02))


class TestNodes:
    def test_trajectories_go_through_the_link(self):
        cal = calibration(act=1e-4, learn=1e-4, bytes={"trajectory_bytes": 1e6, "parameters_bytes": 8.0})
        place = Place(2, 64, link_bytes_per_s=1e8)
        found = forecast(pipeline(actors=4), cal, place)
        # ranks 0 to 2 on the first node are replay, learner, actor 0; three actors, 6 environments, are on the second
        assert (found.limit, found.round_s) == ("link", pytest.approx(6e6 / 1e8))

    def test_fewer_ranks_than_nodes_are_refused(self):
        with pytest.raises(ConfigError, match=r"3 ranks are too few for 4 nodes"):
            forecast(pipeline(), calibration(), Place(4, 2))


def test_of_equals_the_one_with_fewest_learners_is_preferred():
    one = forecast(pipeline(), calibration(), MANY)
    slow, equal = replace(one, env_steps_per_s=1.0), replace(one, env_steps_per_s=1.01 * one.env_steps_per_s)
    assert preferred([slow, one, equal]) is one
    assert preferred([slow, one, replace(one, env_steps_per_s=1.1 * one.env_steps_per_s)]) is not one
