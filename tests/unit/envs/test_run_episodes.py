"""Evaluation: the first episode of every environment, whole."""

import numpy as np
import pytest

from hpcrl.config import EnvConfig
from hpcrl.envs import make_vector_env, run_episodes


def toy(env_id, indices, **kwargs):
    return make_vector_env(EnvConfig(id=env_id, engine="toy", kwargs=kwargs), indices, 0)


def idle(obs, begins):
    return np.zeros(len(obs), np.int64)


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_one_episode_per_environment_in_order(num_envs):
    results = run_episodes(toy("counting", range(num_envs)), idle, 100)
    assert (
        results
        == [(15.0, 5, False), (28.0, 7, False), (15.0, 5, False), (28.0, 7, False), (15.0, 5, False)][
            :num_envs
        ]
    )


def test_long_episodes_are_cut_and_say_so():
    assert run_episodes(toy("counting", range(2)), idle, 6) == [(15.0, 5, False), (21.0, 6, True)]


def test_an_end_at_the_limit_is_not_a_cut():
    assert run_episodes(toy("counting", range(2)), idle, 7)[1] == (28.0, 7, False)


def test_a_game_with_episodic_life_is_played_to_its_end():
    assert run_episodes(toy("lives", range(1), episodic_life=True), idle, 100) == [(60.0, 12, False)]


def test_cut_counts_valid_steps_over_lives():
    assert run_episodes(toy("lives", range(1), episodic_life=True), idle, 6) == [(30.0, 6, True)]


def test_the_policy_sees_the_observations():
    seen = []

    def look(obs, begins):
        seen.append((int(obs[0, 0]), bool(begins[0])))
        return idle(obs, begins)

    run_episodes(toy("counting", range(1)), look, 100)
    assert seen == [(0, True), (1, False), (2, False), (3, False), (4, False)]


def test_the_policy_is_told_where_each_episode_begins():
    """Also of a game's later lives, and of an environment that is done."""
    steps, first = [], []

    def look(obs, begins):
        steps.append(obs[:, 1].copy())
        first.append(begins)
        return idle(obs, begins)

    run_episodes(toy("lives", range(2), episodic_life=True), look, 100)
    assert len(steps) == 14
    np.testing.assert_array_equal(np.array(first), np.array(steps) == 0)


def test_the_limit_must_be_positive():
    with pytest.raises(ValueError, match="max_episode_steps=0"):
        run_episodes(toy("counting", range(1)), idle, 0)
