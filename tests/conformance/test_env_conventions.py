"""One counting environment through every engine and autoreset convention: the same transitions (P43, P45)."""

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from hpcrl.config import EnvConfig
from hpcrl.envs import make_vector_env
from hpcrl.envs.conventions import CountingGymEnv, CountingPool
from hpcrl.envs.from_envpool import EnvPoolVectorEnv
from hpcrl.envs.from_gymnasium import adapt

SEEDS = [11, 22, 33]


def factories(num_envs):
    return [lambda index=index: CountingGymEnv(index) for index in range(num_envs)]


def gymnasium_sync(mode, num_envs):
    return adapt(SyncVectorEnv(factories(num_envs), autoreset_mode=mode), seeds=SEEDS[:num_envs])


def gymnasium_async(mode, num_envs):
    vector = AsyncVectorEnv(factories(num_envs), context="spawn", autoreset_mode=mode)
    return adapt(vector, seeds=SEEDS[:num_envs])


CONVENTIONS = {
    "sync-next-step": lambda n: gymnasium_sync(AutoresetMode.NEXT_STEP, n),
    "sync-same-step": lambda n: gymnasium_sync(AutoresetMode.SAME_STEP, n),
    "sync-disabled": lambda n: gymnasium_sync(AutoresetMode.DISABLED, n),
    "async-next-step": lambda n: gymnasium_async(AutoresetMode.NEXT_STEP, n),
    "async-same-step": lambda n: gymnasium_async(AutoresetMode.SAME_STEP, n),
    "async-disabled": lambda n: gymnasium_async(AutoresetMode.DISABLED, n),
    "envpool-like": lambda n: EnvPoolVectorEnv(CountingPool(range(n), SEEDS[:n]), "counting"),
    "toy": lambda n: make_vector_env(
        EnvConfig(id="counting", engine="toy", kwargs={"tagged": True}), range(n), 0
    ),
}


def expected_steps(index, count):
    """Written down from the definition: (obs, reward, terminated, truncated, valid, return, length)."""
    rows, parity = [], index % 2
    while len(rows) < count:
        length = 5 if parity == 0 else 7
        for step in range(1, length + 1):
            end = step == length
            total = length * (length + 1) / 2
            rows.append(
                (
                    step,
                    step,
                    end and parity == 0,
                    end and parity == 1,
                    True,
                    total if end else 0,
                    length if end else 0,
                )
            )
        rows.append((0, 0, False, False, False, 0, 0))
        parity = 1 - parity
    return rows[:count]


def run(env, count):
    obs = [np.array(env.reset())]
    rows = [[] for _ in range(env.num_envs)]
    for _ in range(count):
        env.send(np.zeros(env.num_envs, np.int64))
        step = env.recv()
        obs.append(np.array(step.obs))
        for row in range(env.num_envs):
            rows[row].append(
                (
                    float(step.obs[row, 0]),
                    float(step.reward[row]),
                    bool(step.terminated[row]),
                    bool(step.truncated[row]),
                    bool(step.valid[row]),
                    float(step.episode_return[row]),
                    int(step.episode_length[row]),
                )
            )
    env.close()
    return np.array(obs), rows


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("name", CONVENTIONS)
def test_stored_transitions_are_identical(name, num_envs):
    obs, rows = run(CONVENTIONS[name](num_envs), 40)
    assert (obs[0, :, 0] == 0).all()
    for index in range(num_envs):
        assert rows[index] == expected_steps(index, 40)
    for index in range(num_envs):
        for t, row in enumerate(rows[index]):
            if row[4]:  # no valid pair crosses a reset: both ends carry the tag of one episode
                assert obs[t, index, 1] == obs[t + 1, index, 1]
                assert obs[t + 1, index, 0] == obs[t, index, 0] + 1
            else:
                assert obs[t, index, 1] != obs[t + 1, index, 1]


@pytest.mark.parametrize("name", CONVENTIONS)
def test_bootstrap_observation_at_truncation_is_the_last_one(name):
    """P45: with V(s) = s the bootstrap is V(7), never V(0) or V(6)."""
    _, rows = run(CONVENTIONS[name](2), 40)
    bootstraps = [row[0] for stream in rows for row in stream if row[3]]
    assert bootstraps == [7.0] * len(bootstraps)
    assert len(bootstraps) == 5


def test_next_step_engines_agree_on_every_tag():
    """Where no reset is wasted, the episodes themselves are the same, drawn from the same seeds."""
    streams = [
        run(CONVENTIONS[name](3), 40)[0] for name in ("sync-next-step", "async-next-step", "envpool-like")
    ]
    assert np.array_equal(streams[0], streams[1])
    assert np.array_equal(streams[0], streams[2])
