"""Targets of action values against plain loops; rescaling to the last digit; exploration in the right proportion."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcrl.functional.losses import huber_loss
from hpcrl.functional.q_learning import (
    epsilon_greedy,
    epsilon_ladder,
    greedy_value,
    n_step_returns,
    rescale,
    rescale_inverse,
    sequence_priority,
)

GAMMA = 0.9


def n_step_by_loops(reward, next_value, terminated, truncated, steps):
    length, columns = reward.shape
    returns = np.zeros(reward.shape)
    for b in range(columns):
        for t in range(length):
            factor = 1.0
            for k in range(t, min(t + steps, length)):
                returns[t, b] += factor * reward[k, b]
                factor *= GAMMA
                if terminated[k, b]:
                    factor = 0.0
                if terminated[k, b] or truncated[k, b]:
                    break
            returns[t, b] += factor * next_value[k, b]
    return returns


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("length", [0, 1, 2, 12])
def test_n_step_returns(steps: int, length: int) -> None:
    rng = np.random.default_rng(steps)
    reward, next_value = rng.normal(size=(2, length, 6))
    terminated, truncated = rng.random((2, length, 6)) < 0.15
    given = [torch.from_numpy(array) for array in (reward, next_value, terminated, truncated)]
    found = n_step_returns(*given, gamma=GAMMA, steps=steps)
    expected = n_step_by_loops(reward, next_value, terminated, truncated, steps)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_double_form_takes_the_value_from_one_network_and_the_action_from_the_other() -> None:
    values, selector = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.0, 5.0, -1.0]])
    assert greedy_value(values, selector).tolist() == [2.0]
    assert greedy_value(values, values).tolist() == [3.0]
    assert not greedy_value(values.requires_grad_(), selector.requires_grad_()).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1e-2, 1.0])
def test_rescaling_and_its_inverse_lose_nothing(dtype: torch.dtype, epsilon: float) -> None:
    """Over 12 orders of magnitude to a few units in the last place, where the usual form loses 5 digits."""
    size = torch.logspace(-6, 6, 241, dtype=dtype)
    value = torch.cat((-size, torch.zeros(1, dtype=dtype), size))
    last = torch.finfo(dtype).eps
    torch.testing.assert_close(
        rescale_inverse(rescale(value, epsilon), epsilon), value, rtol=8 * last, atol=0
    )
    h = rescale(value.double(), epsilon)
    expected = value.double().sign() * ((value.double().abs() + 1).sqrt() - 1) + epsilon * value.double()
    torch.testing.assert_close(h, expected, rtol=1e-9, atol=1e-15)


def test_the_loss_of_huber() -> None:
    value = torch.tensor([-3.0, -0.5, 0.0, 0.5, 4.0], requires_grad=True)
    loss = huber_loss(value, torch.zeros(5))
    assert loss.tolist() == [2.5, 0.125, 0.0, 0.125, 3.5]
    loss.sum().backward()
    assert value.grad is not None
    assert value.grad.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]


def test_a_sequence_without_a_valid_step_has_priority_0() -> None:
    errors = torch.tensor([[1.0, -4.0], [torch.nan, 2.0]])
    valid = torch.tensor([[False, True], [False, True]])
    assert sequence_priority(errors, valid, 0.9).tolist() == pytest.approx([0.0, 0.9 * 4 + 0.1 * 3])


def test_the_ladder_is_one_whoever_holds_the_environments() -> None:
    whole = epsilon_ladder(np.arange(6), 6, 0.4, 7.0)
    assert whole[0] == np.float32(0.4)
    assert whole[-1] == pytest.approx(0.4**8)
    parts = [epsilon_ladder(np.arange(start, start + 2), 6, 0.4, 7.0) for start in (0, 2, 4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert epsilon_ladder(np.zeros(1, np.int64), 1, 0.4, 7.0).tolist() == [np.float32(0.4)]


def test_epsilon_greedy_explores_what_is_allowed_alone_and_as_often_as_it_should() -> None:
    rows = 20_000
    values = np.tile(np.array([1.0, -np.inf, 3.0, 2.0], np.float32), (rows, 1))
    actions = epsilon_greedy(values, np.full(rows, 0.3, np.float32), np.random.default_rng(0))
    share = np.bincount(actions, minlength=4) / rows
    np.testing.assert_allclose(share, [0.1, 0.0, 0.8, 0.1], atol=0.012)
    assert share[1] == 0
    assert set(epsilon_greedy(values, None, np.random.default_rng(0))) == {2}
    assert set(epsilon_greedy(values, np.zeros(rows, np.float32), np.random.default_rng(0))) == {2}


def test_every_row_draws_as_many_numbers_whatever_its_epsilon() -> None:
    values = np.zeros((5, 3), np.float32)
    after = []
    for epsilon in (0.0, 1.0):
        rng = np.random.default_rng(0)
        epsilon_greedy(values, np.full(5, epsilon, np.float32), rng)
        after.append(rng.random())
    assert after[0] == after[1]
