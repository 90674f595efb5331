"""Returns against slow references written from the formulas, as one explicit sum per episode."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.functional import returns

Arrays = dict[str, np.ndarray]
GAMMA = 0.9
SHAPES = st.tuples(st.integers(0, 9), st.integers(0, 3))


def random_arrays(seed: int, shape: tuple[int, ...], end_share: float = 0.4) -> Arrays:
    """Every mixture of terminated, truncated and cut by the unroll's end, in float64."""
    rng = np.random.default_rng(seed)
    kind = rng.random(shape)
    return {
        "reward": rng.normal(size=shape),
        "value": rng.normal(size=shape),
        "next_value": rng.normal(size=shape),
        "terminated": kind < end_share / 2,
        "truncated": (kind >= end_share / 2) & (kind < end_share),
        "log_rho": rng.normal(size=shape),
    }


def consistent(arrays: Arrays) -> Arrays:
    """Inside an episode the value of the successor is the value of the next row."""
    inside = ~(arrays["terminated"] | arrays["truncated"])[:-1]
    arrays["next_value"][:-1][inside] = arrays["value"][1:][inside]
    return arrays


def arguments(arrays: Arrays, *names: str) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in names]


def gae(arrays: Arrays, **options: float) -> returns.Gae:
    names = ("reward", "value", "next_value", "terminated", "truncated")
    return returns.gae(*arguments(arrays, *names), **options)


def vtrace(arrays: Arrays, **options: float) -> returns.VTrace:
    names = ("reward", "value", "next_value", "terminated", "truncated")
    (log_rho,) = arguments(arrays, "log_rho")
    return returns.vtrace(*arguments(arrays, *names), log_rho=log_rho, **options)


def slow_sums(arrays: Arrays, b: int, weights: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """For each t: sum over k >= t, up to the episode's end, of prod(factors[t:k]) * weights[k] * delta[k]."""
    length = len(arrays["reward"])
    result = np.zeros(length)
    for t in range(length):
        product = 1.0
        for k in range(t, length):
            terminal = arrays["terminated"][k, b]
            bootstrap = 0.0 if terminal else GAMMA * arrays["next_value"][k, b]
            delta = arrays["reward"][k, b] + bootstrap - arrays["value"][k, b]
            result[t] += product * weights[k] * delta
            if terminal or arrays["truncated"][k, b]:
                break
            product *= factors[k]
    return result


def check_gae_against_reference(seed: int, shape: tuple[int, int], lambda_: float) -> None:
    arrays = random_arrays(seed, shape)
    result = gae(arrays, gamma=GAMMA, lambda_=lambda_)
    for b in range(shape[1]):
        ones = np.ones(shape[0])
        expected = slow_sums(arrays, b, ones, GAMMA * lambda_ * ones)
        np.testing.assert_allclose(result.advantages[:, b], expected, atol=1e-9)
        np.testing.assert_allclose(result.value_targets[:, b], expected + arrays["value"][:, b], atol=1e-9)
    assert result.advantages.shape == shape


def check_vtrace_against_reference(
    seed: int, shape: tuple[int, int], lambda_: float, caps: tuple[float, float, float]
) -> None:
    arrays = random_arrays(seed, shape)
    rho_bar, c_bar, pg_rho_bar = caps
    options = {"rho_bar": rho_bar, "c_bar": c_bar, "pg_rho_bar": pg_rho_bar}
    result = vtrace(arrays, gamma=GAMMA, lambda_=lambda_, **options)
    length = shape[0]
    for b in range(shape[1]):
        weight = np.exp(arrays["log_rho"][:, b])
        sums = slow_sums(arrays, b, np.minimum(rho_bar, weight), GAMMA * lambda_ * np.minimum(c_bar, weight))
        targets = arrays["value"][:, b] + sums
        np.testing.assert_allclose(result.value_targets[:, b], targets, atol=1e-9)
        for t in range(length):
            ended = arrays["terminated"][t, b] or arrays["truncated"][t, b]
            following = arrays["next_value"][t, b] if ended or t == length - 1 else targets[t + 1]
            bootstrap = 0.0 if arrays["terminated"][t, b] else GAMMA * following
            step = arrays["reward"][t, b] + bootstrap - arrays["value"][t, b]
            expected = min(pg_rho_bar, weight[t]) * step
            np.testing.assert_allclose(result.advantages[t, b].item(), expected, atol=1e-9)


def check_values_after_a_border_do_not_matter(flag: str) -> None:
    for border in range(5):
        arrays = random_arrays(3, (6, 1), end_share=0.0)
        arrays[flag][border] = True
        changed = {name: values.copy() for name, values in arrays.items()}
        for name in ("reward", "value", "next_value", "log_rho"):
            changed[name][border + 1 :] += 100.0
        for before, after in zip(
            [*gae(arrays, gamma=GAMMA, lambda_=0.95), *vtrace(arrays, gamma=GAMMA)],
            [*gae(changed, gamma=GAMMA, lambda_=0.95), *vtrace(changed, gamma=GAMMA)],
            strict=True,
        ):
            assert torch.equal(before[: border + 1], after[: border + 1])
            assert not torch.equal(before[border + 1 :], after[border + 1 :])


def check_time_limit_chain() -> None:
    """Reward 1 for ever, cut every five steps: each state is worth 1 / (1 - gamma)."""
    length = 23
    truncated = (np.arange(length) % 5 == 4)[:, None]
    never = np.zeros((length, 1), bool)
    value = np.zeros((length, 1))
    for _ in range(400):
        arrays = {
            "reward": np.ones((length, 1)),
            "value": value,
            "next_value": np.full((length, 1), value.mean()),
            "terminated": never,
            "truncated": truncated,
            "log_rho": np.zeros((length, 1)),
        }
        from_gae = gae(arrays, gamma=GAMMA, lambda_=0.95).value_targets.numpy()
        value = 0.5 * from_gae + 0.5 * vtrace(arrays, gamma=GAMMA).value_targets.numpy()
    np.testing.assert_allclose(value, 1 / (1 - GAMMA), atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), shape=SHAPES, lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_against_reference(seed: int, shape: tuple[int, int], lambda_: float) -> None:
    check_gae_against_reference(seed, shape, lambda_)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=SHAPES,
    lambda_=st.sampled_from([0.0, 0.95, 1.0]),
    caps=st.sampled_from([(1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.5, 0.5, 3.0)]),
)
def test_vtrace_against_reference(
    seed: int, shape: tuple[int, int], lambda_: float, caps: tuple[float, float, float]
) -> None:
    check_vtrace_against_reference(seed, shape, lambda_, caps)


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_values_after_a_border_do_not_matter(flag: str) -> None:
    check_values_after_a_border_do_not_matter(flag)


def test_time_limit_chain() -> None:
    check_time_limit_chain()


@pytest.mark.parametrize("end_share", [0.0, 0.4])
def test_vtrace_on_policy_is_the_return_to_the_end(end_share: float) -> None:
    arrays = consistent(random_arrays(11, (8, 2), end_share)) | {"log_rho": np.zeros((8, 2))}
    targets = vtrace(arrays, gamma=GAMMA).value_targets
    monte_carlo = gae(arrays, gamma=GAMMA, lambda_=1.0)
    for b in range(2):
        for t in range(8):
            total, factor, k = 0.0, 1.0, t
            while True:
                total += factor * arrays["reward"][k, b]
                factor *= GAMMA
                if arrays["terminated"][k, b] or arrays["truncated"][k, b] or k == 7:
                    break
                k += 1
            if not arrays["terminated"][k, b]:
                total += factor * arrays["next_value"][k, b]
            assert math.isclose(targets[t, b].item(), total, abs_tol=1e-9)
    torch.testing.assert_close(targets, monte_carlo.value_targets)


@pytest.mark.parametrize("size", range(1, 8))
def test_chunks_bootstrapped_by_the_next_target_give_the_unsplit_targets(size: int) -> None:
    arrays = consistent(random_arrays(5, (7, 2), end_share=0.3))
    whole = vtrace(arrays, gamma=GAMMA)
    for start in range(0, 7, size):
        stop = min(start + size, 7)
        part = {name: values[start:stop].copy() for name, values in arrays.items()}
        if stop < 7:
            ended = part["terminated"][-1] | part["truncated"][-1]
            part["next_value"][-1] = np.where(ended, part["next_value"][-1], whole.value_targets[stop])
        result = vtrace(part, gamma=GAMMA)
        torch.testing.assert_close(result.value_targets, whole.value_targets[start:stop])
        torch.testing.assert_close(result.advantages, whole.advantages[start:stop])


def test_the_last_step_counts() -> None:
    arrays = {name: np.zeros((4, 1)) for name in ("reward", "value", "next_value", "log_rho")}
    arrays |= {name: np.zeros((4, 1), bool) for name in ("terminated", "truncated")}
    arrays["reward"][-1] = 1.0
    expected = torch.tensor([[GAMMA**3], [GAMMA**2], [GAMMA], [1.0]], dtype=torch.float64)
    torch.testing.assert_close(vtrace(arrays, gamma=GAMMA).value_targets, expected)
    torch.testing.assert_close(gae(arrays, gamma=GAMMA, lambda_=1.0).advantages, expected)


@pytest.mark.parametrize("log_rho", [5.0, 50.0, 500.0, math.inf, -5.0, -50.0, -500.0, -math.inf])
def test_any_ratio_gives_finite_targets(log_rho: float) -> None:
    arrays = random_arrays(2, (5, 2)) | {"log_rho": np.full((5, 2), log_rho)}
    arrays = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in arrays.items()}
    result = vtrace(arrays, gamma=GAMMA)
    assert result.value_targets.dtype == torch.float32
    assert torch.isfinite(result.value_targets).all()
    assert torch.isfinite(result.advantages).all()
    if log_rho > 0:
        unit = vtrace(arrays | {"log_rho": np.zeros((5, 2), np.float32)}, gamma=GAMMA)
        torch.testing.assert_close(result.value_targets, unit.value_targets)


@pytest.mark.parametrize("shape", [(0,), (1,), (6,)])
def test_a_single_sequence_is_one_column(shape: tuple[int, ...]) -> None:
    arrays = random_arrays(8, shape)
    batched = {name: values[:, None] for name, values in arrays.items()}
    options: dict[str, Any] = {"gamma": GAMMA, "lambda_": 0.9}
    for one, many in zip(
        [*gae(arrays, **options), *vtrace(arrays, **options)],
        [*gae(batched, **options), *vtrace(batched, **options)],
        strict=True,
    ):
        assert one.shape == shape
        assert torch.equal(one, many[:, 0])


def test_columns_do_not_mix() -> None:
    arrays = random_arrays(9, (6, 4))
    order = [2, 0, 3, 1]
    permuted = {name: values[:, order] for name, values in arrays.items()}
    assert torch.equal(
        vtrace(permuted, gamma=GAMMA).advantages, vtrace(arrays, gamma=GAMMA).advantages[:, order]
    )
    whole = gae(arrays, gamma=GAMMA, lambda_=0.9).advantages
    assert torch.equal(gae(permuted, gamma=GAMMA, lambda_=0.9).advantages, whole[:, order])


def test_inputs_are_not_changed_and_nothing_carries_a_gradient() -> None:
    arrays = random_arrays(4, (5, 2))
    copies = {name: values.copy() for name, values in arrays.items()}
    names = ("reward", "value", "next_value", "terminated", "truncated")
    tensors = arguments(arrays, *names)
    tensors[1].requires_grad_()
    result = returns.vtrace(*tensors, log_rho=torch.from_numpy(arrays["log_rho"]), gamma=GAMMA)
    assert not result.value_targets.requires_grad
    assert not result.advantages.requires_grad
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, copies[name])
