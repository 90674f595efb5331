import pytest

from hpcrl.bench.scale import bench_scale, render, with_actors
from hpcrl.config import ConfigError, RunConfig


def config(**sections):
    values = {
        "name": "toy",
        "env": {"id": "chain", "engine": "toy", "num_envs": 8},
        "algorithm": {"name": "impala"},
        "ranks": {"actors": 4},
        "budget": {"env_steps": 1000},
    }
    return RunConfig.parse(values | sections)


def test_each_actor_keeps_its_environments_and_its_share_of_the_budget():
    more = with_actors(config(), 32)
    assert (more.ranks.actors, more.env.num_envs, more.budget.env_steps) == (32, 64, 8000)
    one = with_actors(config(), 1)
    assert (one.ranks.actors, one.env.num_envs, one.budget.env_steps) == (1, 2, 250)
    assert with_actors(config(), 4) == config()


def test_an_actor_has_an_environment_for_every_group():
    grouped = config(env={"id": "chain", "engine": "toy", "num_envs": 8, "num_groups": 2})
    assert with_actors(grouped, 3).env.num_envs == 6


def test_growth_and_efficiency_are_those_of_the_medians():
    speeds = {4: iter([390.0, 400.0, 900.0]), 16: iter([1200.0, 10.0, 1300.0])}

    def measure(run):
        return {"env_steps_per_s": next(speeds[run.ranks.actors])}

    result = bench_scale(config(), (16, 4), 3, measure)
    assert [row["actors"] for row in result["rows"]] == [4, 16]
    assert [row["env_steps_per_s"] for row in result["rows"]] == [400.0, 1200.0]
    assert [row["growth"] for row in result["rows"]] == [1.0, 3.0]
    assert [row["efficiency"] for row in result["rows"]] == [1.0, 0.75]
    assert len(render(result).columns) == 4


@pytest.mark.parametrize("actors", [(), (4,), (4, 4), (0, 4)])
def test_there_must_be_something_to_compare(actors):
    with pytest.raises(ConfigError, match="give at least two different numbers of actors"):
        bench_scale(config(), actors, 1, lambda run: {})


def test_the_synchronous_scheme_has_no_actors():
    with pytest.raises(ConfigError, match="scheme=pipeline"):
        bench_scale(config(scheme="synchronous", ranks={"workers": 2}), (1, 2), 1, lambda run: {})
