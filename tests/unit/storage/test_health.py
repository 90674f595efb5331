"""Odd actors: a doctored one is found, honest ones are not, whatever their returns look like."""

import math

import numpy as np
import pytest

from hpcrl.roles.result_writer import ResultWriter
from hpcrl.storage import TABLES, RunLog
from hpcrl.storage.health import FEWEST_EPISODES, ActorWatch, last_returns, noise_scale, odd_actors


def normal(rng, n):
    return rng.normal(100, 30, n)


def rare(rng, n):
    return (rng.random(n) < 0.03).astype(float)


def heavy(rng, n):
    return rng.pareto(1.1, n)


def constant(rng, n):
    return np.full(n, 500.0)


KINDS = (normal, rare, heavy, constant)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_actors", [1, 2, 3, 8, 60])
def test_no_false_alarm(kind, num_actors):
    rng = np.random.default_rng(num_actors)
    for _ in range(20):
        returns = {actor: kind(rng, rng.integers(1, 51)) for actor in range(num_actors)}
        assert odd_actors(returns) == []


@pytest.mark.parametrize("num_actors", [3, 4, 20])
@pytest.mark.parametrize(
    "doctored", [lambda x: 0 * x, lambda x: x + 100, lambda x: -x, lambda x: x * 3, lambda x: x * math.nan]
)
def test_a_doctored_actor_is_found_and_nobody_else(num_actors, doctored):
    rng = np.random.default_rng(0)
    returns = {actor: normal(rng, 50) for actor in range(num_actors)}
    returns[1] = doctored(returns[1])
    (odd,) = odd_actors(returns)
    assert odd.actor == 1 and odd.episodes == 50
    assert abs(odd.peers - 100) < 15
    assert str(odd).startswith("actor 1: mean return ")


def test_constants_are_compared_too_and_tasks_of_ones_own_are_not_odd():
    assert [odd.actor for odd in odd_actors({a: [5.0 - (a == 2)] * 40 for a in range(4)})] == [2]
    assert odd_actors({actor: [float(actor)] * 40 for actor in range(9)}) == []


def test_two_actors_or_few_episodes_say_nothing():
    assert odd_actors({0: [1.0] * 50, 1: [9.0] * 50}) == []
    assert odd_actors({0: [1.0] * 50, 1: [1.0] * 50, 2: [9.0] * (FEWEST_EPISODES - 1)}) == []
    assert odd_actors({}) == []


def episodes(actors, returns):
    return TABLES["episodes"].rows(
        len(actors), actor=actors, episode_return=returns, time_s=0.0, env_steps=1, truncated=False
    )


def test_the_watch_tells_once_and_the_last_attempt_counts():
    watch = ActorWatch()
    actors = np.tile(np.arange(3), 40)
    told = [odd for part in range(4) for odd in watch.add(episodes(actors, np.where(actors == 1, 7.0, 2.0)))]
    assert [(odd.actor, odd.mean, odd.peers) for odd in told] == [(1, 7.0, 2.0)]
    rows = np.zeros(4, [("attempt", "i4"), ("actor", "i4"), ("episode_return", "f8")])
    rows["attempt"], rows["actor"], rows["episode_return"] = (1, 2, 2, 2), (0, 0, 0, 1), (9, 3, 4, 5)
    assert last_returns(rows) == {0: [3, 4], 1: [5]}
    assert last_returns(rows[:0]) == {}


@pytest.mark.parametrize("role", ["actor", "worker"])
def test_an_odd_actor_becomes_one_event(tmp_path, role):
    seen = []
    log = RunLog(tmp_path / "001.h5", config_json="{}", provenance={}, attempt=1)
    writer = ResultWriter(log, lambda table, rows: seen.append((table, rows)), acting=role)
    actors = np.tile(np.arange(4), 50)
    for _ in range(3):
        writer.add("episodes", episodes(actors, np.where(actors == 3, -5.0, 2.0)))
    writer.close()
    (event,) = [rows[0] for table, rows in seen if table == "events"]
    assert (event["kind"], event["role"], event["role_rank"]) == (b"odd_actor", role.encode(), 3)
    assert b"actor 3: mean return -5 over 50 episodes, its peers have 2" in event["text"]


def test_the_noise_scale_is_a_ratio_of_means():
    def updates(squares, variances):
        return TABLES["updates"].rows(
            len(squares), grad_square=squares, grad_variance=variances, applied=True, time_s=0.0
        )

    assert noise_scale(updates([1.0, 3.0, math.nan], [10.0, 50.0, 1.0])) == 15
    assert noise_scale(updates([-1.0, -3.0], [10.0, 50.0])) is None
    assert noise_scale(updates([math.nan], [math.nan])) is None
    assert noise_scale(updates([-9.0] + [1.0] * 100, [1.0] * 101)) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_returns_that_are_not_finite_are_odd_without_a_warning(value):
    fine = [1.0, 2.0] * 20
    assert [one.actor for one in odd_actors({0: fine, 1: [value] * 40, 2: fine})] == [1]
    assert odd_actors(dict.fromkeys(range(3), [value] * 40)) == []
