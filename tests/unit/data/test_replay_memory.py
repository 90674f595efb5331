"""Transitions of the replay memory against a slow reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.data.replay_support import Envs, everything, gathered, make_memory, transition


def expected(envs, memory, n, gamma=0.9):
    """Every transition that must be there, by its env_steps."""
    live = memory.rings.place.live
    found = {}
    for env in memory.env_columns:
        column = envs.columns[env]
        # a gap is one entry of the list and a block of the ring
        width = [memory.rings.place.block if step.get("gap") else 1 for step in column.steps]
        ends = np.cumsum(width)
        for index in range(len(column.steps)):
            if ends[-1] - ends[index] < live and (one := transition(column, index, n, gamma)) is not None:
                found[float(one["obs"].reshape(-1)[0]), env] = one
    return found


def check_all(memory, envs, n):
    want = expected(envs, memory, n)
    got = gathered(memory, everything(memory), envs)
    assert memory.entries == len(want)
    assert len(got["action"]) == len(want)
    by_obs = {float(one["obs"].reshape(-1)[0]): one for one in want.values()}
    for index, obs in enumerate(got["obs"]):
        one = by_obs.pop(float(obs.reshape(-1)[0]))
        for name in ("obs", "next_obs", "action", "parameter_version"):
            np.testing.assert_array_equal(got[name][index], one[name], err_msg=name)
        for name in ("reward", "discount"):
            np.testing.assert_allclose(got[name][index], one[name], rtol=1e-6, atol=1e-6, err_msg=name)
        assert got["valid"][index]
    assert not by_obs


@pytest.mark.parametrize("n", [1, 3, 6])
def test_every_transition_is_there_and_exact(n):
    envs = Envs(range(2, 5))
    memory = make_memory(envs, capacity=3 * 17, n=n)
    for version in range(20):
        memory.insert(envs.trajectory(version=version))
        if memory.entries:
            check_all(memory, envs, n)
    assert memory.inserted == sum(step["valid"] for c in envs.columns.values() for step in c.steps)
