import numpy as np
import pytest
import torch

from hpcrl.bench import reference
from hpcrl.bench.reference import Episodes, Storage, Work, run_reference

NUM_ENVS, UNROLL_LENGTH = Work().num_envs, Work().unroll_length
ONE_UPDATE = NUM_ENVS * UNROLL_LENGTH


def storage_of(reward, ended, value):
    empty = torch.zeros(0)
    return Storage(empty, empty, empty, torch.tensor(reward), torch.tensor(ended), torch.tensor(value))


def slow_advantages(reward, ended, value):
    """GAE as a double sum: A_t = sum over k of (gamma * lambda)^k * delta_{t+k}, up to the first end."""
    gamma, lambda_ = reference.GAMMA, reference.GAE_LAMBDA
    steps, num_envs = reward.shape
    result = np.zeros_like(reward)
    for b in range(num_envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                going_on = 1.0 - ended[k + 1, b]
                result[t, b] += weight * (reward[k, b] + gamma * value[k + 1, b] * going_on - value[k, b])
                weight *= gamma * lambda_ * going_on
    return result


def test_it_learns_cartpole():
    returns = run_reference("CartPole-v1", 40 * ONE_UPDATE, seed=1)["episode_returns"]
    # Seeds 1 to 3: from about 20 to 74, 92 and 98.
    assert np.mean(returns[-20:]) > 2.5 * np.mean(returns[:20])


def test_result_says_how_fast():
    result = run_reference("CartPole-v1", 2 * ONE_UPDATE + 1, seed=0)
    assert result["env_steps"] == 3 * ONE_UPDATE
    assert result["env_steps_per_s"] == pytest.approx(2 * ONE_UPDATE / result["wall_s"])
    assert result["env_id"] == "CartPole-v1"
    assert set(result) == {
        "env_id",
        "env_steps",
        "env_steps_per_s",
        "wall_s",
        "num_threads",
        "episode_returns",
    }


def test_smallest_budget_still_measures_one_update_after_the_warm_up():
    result = run_reference("CartPole-v1", 1, seed=0, num_threads=1)
    assert result["num_threads"] == 1
    assert result["env_steps"] == 2 * ONE_UPDATE
    assert result["env_steps_per_s"] > 0


def test_continuous_actions():
    result = run_reference("Pendulum-v1", 2 * ONE_UPDATE, seed=0)
    assert len(result["episode_returns"]) == 8  # 256 steps of 8 environments, episodes of 200
    assert max(result["episode_returns"]) < 0


def test_equal_seeds_give_equal_returns():
    first, again, other = (
        run_reference("CartPole-v1", 1, seed=seed)["episode_returns"] for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("end_at", [None, 1, 64, UNROLL_LENGTH])
def test_advantages_stop_at_ends(end_at):
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(UNROLL_LENGTH, NUM_ENVS)).astype(np.float32)
    value = rng.normal(size=(UNROLL_LENGTH + 1, NUM_ENVS)).astype(np.float32)
    ended = np.zeros_like(value)
    if end_at is not None:
        ended[end_at, ::2] = 1.0
    found = reference._advantages(storage_of(reward, ended, value)).numpy()
    np.testing.assert_allclose(found, slow_advantages(reward, ended, value), rtol=1e-4, atol=1e-4)


def test_episodes_count_per_environment():
    episodes = Episodes(NUM_ENVS)
    nothing = np.zeros(NUM_ENVS, bool)
    episodes.add(np.arange(NUM_ENVS, dtype=float), nothing)
    episodes.add(np.ones(NUM_ENVS), np.arange(NUM_ENVS) == 3)
    episodes.add(np.ones(NUM_ENVS), np.arange(NUM_ENVS) >= 6)
    episodes.add(np.ones(NUM_ENVS), np.arange(NUM_ENVS) == 3)
    assert episodes.returns == [4.0, 8.0, 9.0, 2.0]


def test_other_work_is_done():
    work = {"num_envs": 3, "unroll_length": 20, "epochs": 1, "num_minibatches": 2, "hidden_sizes": [16]}
    result = run_reference("CartPole-v1", 150, seed=0, num_threads=1, work=work)
    assert result["env_steps"] == 3 * 60
    assert result["episode_returns"] != run_reference("CartPole-v1", 150, seed=0)["episode_returns"]
