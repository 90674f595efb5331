"""Sums of squares of whatever size."""

import math

import numpy as np
import pytest

from hpcrl.functional.square_sum import square_sum


@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e-30, 1e19, 1e30])
@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_as_in_float64(scale: float, size: int) -> None:
    vector = (np.random.default_rng(0).normal(size=size) * scale).astype(np.float32)
    assert square_sum(vector) == pytest.approx(
        float(np.square(vector, dtype=np.float64).sum()), rel=1e-12, abs=0
    )


@pytest.mark.parametrize("entry", [math.nan, math.inf, -math.inf])
def test_not_finite_where_an_entry_is_not(entry: float) -> None:
    vector = np.ones(20_000, np.float32)
    vector[12_345] = entry
    assert not math.isfinite(square_sum(vector))
