"""Which saved environments a rank of a resumed run gets."""

import numpy as np
import pytest

from hpcrl.roles.env_state import EnvRows, env_values, saved_envs
from hpcrl.storage.checkpoint import Saved, complete, newest, write_part


def save(path, acting_ranks, envs_of):
    """The state of each environment is its number."""
    hashes = {}
    for actor, envs in envs_of.items():
        state = {"number": np.array(envs, np.int64)}
        number = np.array(envs, np.float32)
        values = env_values(envs[0], [EnvRows(number, state, number[:, None], number)])
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
    assert found.policy_state is not None
    np.testing.assert_array_equal(found.policy_state[:, 0], indices)
    np.testing.assert_array_equal(found.discounted_return, indices)


@pytest.mark.parametrize("indices", [range(2), range(1, 3), range(6)])
def test_those_of_a_dead_actor_are_not_there(saved: Saved, indices):
    assert saved_envs(saved, "actor", 6, indices) is None


def test_nobody_gets_those_of_others_for_them(tmp_path):
    saved = save(tmp_path, 2, {1: (4, 5, 6, 7)})
    assert saved_envs(saved, "actor", 8, range(2)) is None
