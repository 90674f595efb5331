"""Statistics over learners against numpy over the union."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcrl.functional import statistics
from hpcrl.functional.statistics import (
    RunningMoments,
    explained_variance,
    explained_variance_sums,
    global_moments,
    moments_of,
    size_histogram,
    size_quantile,
    sum_moments,
)


def local(vector: Tensor) -> None:
    """One learner: the sum is the vector."""


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments_of_the_valid_values(offset: float) -> None:
    rng = np.random.default_rng(0)
    values, valid = rng.normal(size=(7, 5)) + offset, rng.random((7, 5)) < 0.6
    masked = np.where(valid, values, np.nan)
    samples, mean, variance = global_moments(torch.from_numpy(masked), torch.from_numpy(valid), local)
    assert samples == valid.sum()
    np.testing.assert_allclose(mean, values[valid].mean(), rtol=1e-14)
    np.testing.assert_allclose(variance, values[valid].var(), rtol=1e-9)


def test_moments_are_global_and_take_two_reductions() -> None:
    other = np.array([10.0, 20.0, 40.0])
    mine = np.array([1.0, 2.0])
    union = np.concatenate([mine, other])
    additions = iter(([3.0, other.sum()], [float(((other - union.mean()) ** 2).sum())]))

    def add_other(vector: Tensor) -> None:
        vector += torch.tensor(next(additions), dtype=torch.float64)

    moments = global_moments(torch.from_numpy(mine), torch.ones(2, dtype=torch.bool), add_other)
    np.testing.assert_allclose(moments, (5, union.mean(), union.var()), rtol=1e-12)
    assert next(additions, None) is None


@pytest.mark.parametrize("shape", [(0, 3), (2, 2)])
def test_moments_of_nothing(shape: tuple[int, int]) -> None:
    moments = global_moments(torch.ones(shape), torch.zeros(shape, dtype=torch.bool), local)
    assert tuple(moments) == (0, 0, 0)


def test_one_value_has_no_variance() -> None:
    assert tuple(global_moments(torch.tensor([3.0]), torch.tensor([True]), local)) == (1, 3, 0)


def test_explained_variance_of_parts_adds_up() -> None:
    rng = np.random.default_rng(1)
    value, target = rng.normal(size=20), rng.normal(size=20)
    mask = (rng.random(20) < 0.7).astype(float)
    tensors = [torch.from_numpy(x) for x in (value, target, mask)]
    parts = [explained_variance_sums(*(x[a:b] for x in tensors)) for a, b in ((0, 7), (7, 7), (7, 20))]
    kept = mask == 1
    expected = 1 - (target - value)[kept].var() / target[kept].var()
    np.testing.assert_allclose(explained_variance(sum(parts[1:], parts[0]).tolist()), expected, rtol=1e-10)


def test_explained_variance_of_a_perfect_a_constant_and_no_target() -> None:
    ones = torch.ones(9)
    target = torch.arange(9.0)
    assert explained_variance(explained_variance_sums(target, target, ones).tolist()) == 1.0
    assert math.isnan(explained_variance(explained_variance_sums(target, ones * 0.1, ones).tolist()))
    assert math.isnan(explained_variance(explained_variance_sums(target, target, ones * 0).tolist()))


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_quantiles_of_sizes_are_at_most_a_bin_too_large(count: int, share: float) -> None:
    rng = np.random.default_rng(count)
    values = np.exp(rng.uniform(np.log(1e-3), np.log(20), count)) * rng.choice([-1, 1], count)
    mask = torch.tensor([1.0] * count + [0.0])
    parts = [torch.tensor([*values, 29.0], dtype=torch.float32), mask]
    halves = zip(*(torch.tensor_split(part, 2) for part in parts), strict=True)
    counts = sum(size_histogram(*half) for half in halves)
    exact = np.sort(np.abs(values))[int(np.ceil(share * count)) - 1]
    assert exact * (1 - 1e-5) <= size_quantile(np.cumsum(counts.tolist()).tolist(), share) < 1.15 * exact


def test_quantiles_at_the_borders_of_the_histogram() -> None:
    values = torch.tensor([0.0, 0.0, 1e-9, 50.0, float("nan"), float("inf")])

    def quantile(share: float, *chosen: int) -> float:
        mask = torch.tensor([float(index in chosen) for index in range(6)])
        return size_quantile(size_histogram(values, mask).cumsum(0).tolist(), share)

    assert math.isnan(quantile(0.5))
    assert quantile(1.0, 0, 1, 2) == pytest.approx(1e-4)
    for index in (3, 4, 5):
        assert quantile(0.99, index) == pytest.approx(30.0)
    assert quantile(0.5, 0, 3) == pytest.approx(1e-4)
    assert quantile(0.51, 0, 3) == pytest.approx(30.0)


def of(values: np.ndarray) -> RunningMoments:
    return moments_of(torch.from_numpy(values), torch.ones(len(values), dtype=torch.bool))


def check_moments(moments: RunningMoments, values: np.ndarray, rtol: float = 1e-12) -> None:
    assert moments.count == len(values)
    np.testing.assert_allclose(moments.mean, values.mean(0), rtol=rtol)
    np.testing.assert_allclose(moments.variance, values.var(0), rtol=rtol)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("cuts", [(), (0,), (1,), (50,), (3, 3, 20, 49)])
def test_moments_of_any_parts_are_those_of_the_whole(offset: float, cuts: tuple[int, ...]) -> None:
    values = np.random.default_rng(2).normal(size=(50, 3)) * (1.0, 0.1, 20.0) + offset
    parts = [of(part) for part in np.split(values, cuts)]
    # what float64 has left for a spread of 1 around 1e6
    tolerance = 1e-12 if offset == 0 else 1e-8
    total = RunningMoments.nothing((3,))
    for part in parts:
        total = total.merge(part)
    check_moments(total, values, tolerance)
    exact = values.astype(np.longdouble)
    np.testing.assert_allclose(total.variance, exact.var(0).astype(float), rtol=1e-8 if offset else 1e-12)
    np.testing.assert_allclose(sum_of(parts).squares, total.squares, rtol=tolerance)
    np.testing.assert_allclose(sum_of(parts).mean, total.mean, rtol=1e-12)


def sum_of(parts: list[RunningMoments]) -> RunningMoments:
    """What a learner with the last part gets that the others' sums are added to: first ones, then second ones."""
    *others, own = parts
    count = sum(part.count for part in parts)
    mean = sum(part.mean * part.count for part in parts) / count
    first = [torch.cat((torch.tensor([part.count]).double(), part.mean * part.count)) for part in others]
    second = [part.squares + part.count * (part.mean - mean).square() for part in others]
    additions = iter((first, second))

    def add_others(vector: Tensor) -> None:
        for one in next(additions):
            vector += one

    result = sum_moments(own, add_others)
    assert next(additions, None) is None, "two calls, whatever the data"
    return result


def test_rows_that_are_not_valid_are_never_read_and_many_are_read_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "PART", 7)
    rng = np.random.default_rng(3)
    values, valid = rng.normal(size=(31, 2)).astype(np.float32), rng.random(31) < 0.6
    masked = torch.from_numpy(np.where(valid[:, None], values, np.float32(np.nan)))
    check_moments(moments_of(masked, torch.from_numpy(valid)), values[valid].astype(np.float64))


def test_moments_of_no_row_one_row_and_equal_rows() -> None:
    nothing = RunningMoments.nothing((2,))
    none = moments_of(torch.ones(3, 2), torch.zeros(3, dtype=torch.bool)).merge(nothing)
    assert none.count == 0 and not none.squares.any() and none.inverse_std(1e-8).tolist() == [1.0, 1.0]
    one = nothing.merge(of(np.array([[3.0, -7.5]])))
    assert one.count == 1 and one.mean.tolist() == [3.0, -7.5] and one.variance.tolist() == [0.0, 0.0]
    equal = of(np.full((1000, 2), 0.1, np.float32)).merge(of(np.full((37, 2), 0.1, np.float32)))
    np.testing.assert_allclose(equal.inverse_std(1e-8), [1e4, 1e4], rtol=1e-9)
