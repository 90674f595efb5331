"""Which saved environments a rank of a resumed run gets."""

import numpy as np
import pytest

from hpcrl.roles.env_state import EnvRows, env_values, saved_envs
from hpcrl.storage.checkpoint import Saved, complete, newest, write_part


def save(path, acting_ranks, envs_of, *, env_state=True):
    """The state of each environment is its number; what the policy remembers, that number twice."""
    hashes = {}
    for actor, envs in envs_of.items():
        number = np.array(envs, np.float32)
        state = {"number": np.array(envs, np.int64)} if env_state else {}
        values = env_values(envs[0], [EnvRows(number, state, number[:, None].repeat(2, 1), number)])
        hashes[f"actor-{actor}"] = write_part(path, 7, f"actor-{actor}", {"envs": values})
    complete(path, 7, hashes, meta={"acting_ranks": acting_ranks})
    return newest(path)


@pytest.fixture
def saved(tmp_path):
    """Of six environments on three actors, of which the first had died."""
    return save(tmp_path, 3, {1: (2, 3), 2: (4, 5)})


@pytest.mark.parametrize("indices", [range(2, 4), range(3, 6), range(5, 6)])
def test_environments_are_found_by_their_number(saved: Saved, indices):
    found = saved_envs(saved, "actor", 6, indices)
    assert found is not None
    np.testing.assert_array_equal(found.state["number"], indices)
    np.testing.assert_array_equal(found.obs, indices)
    np.testing.assert_array_equal(found.policy_state, np.array([indices, indices]).T)
    np.testing.assert_array_equal(found.discounted_return, indices)


def test_groups_lie_one_after_the_other():
    rows = [EnvRows(np.full((n, 1), n), {"number": np.full(n, n)}, np.full((n, 2), n)) for n in (2, 1)]
    values = env_values(4, rows)
    assert {name: np.ravel(value).tolist() for name, value in values.items()} == {
        "first": [4],
        "obs": [2, 2, 1],
        "policy_state": [2, 2, 2, 2, 1, 1],
        "state/number": [2, 2, 1],
    }


def test_what_a_policy_remembers_of_an_episode_that_cannot_go_on_is_lost(tmp_path):
    assert saved_envs(save(tmp_path, 1, {0: (0, 1)}, env_state=False), "actor", 2, range(2)) is None


def test_of_a_policy_that_remembers_nothing_nothing_is_saved():
    values = env_values(0, [EnvRows(np.zeros(2), {"number": np.zeros(2)})])
    assert "policy_state" not in values


@pytest.mark.parametrize("indices", [range(2), range(1, 3), range(6)])
def test_those_of_a_dead_actor_are_not_there(saved: Saved, indices):
    assert saved_envs(saved, "actor", 6, indices) is None


def test_nobody_gets_those_of_others_for_them(tmp_path):
    saved = save(tmp_path, 2, {1: (4, 5, 6, 7)})
    assert saved_envs(saved, "actor", 8, range(2)) is None
