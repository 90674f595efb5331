import math
from itertools import pairwise

import numpy as np
import pytest

from hpcrl.live.curve import Curve, sparkline


def brute_force(x, values, bins, width, points):
    """Means of the parts that `points` bins at a time make, from the points themselves."""
    used = int(x.max() / width) + 1
    edges = np.linspace(0, used, min(points, used) + 1).round().astype(int) * width
    return [
        values[(x >= low) & (x < high)].mean() if ((x >= low) & (x < high)).any() else None
        for low, high in pairwise(edges)
    ]


@pytest.mark.parametrize("last", [0, 1, 15, 16, 17, 1000, 10**9])
def test_means_are_those_of_the_points_however_far_they_go(last):
    rng = np.random.default_rng(last)
    x = np.sort(np.append(rng.integers(0, last + 1, 400), last))
    values = rng.normal(size=len(x))
    curve, width = Curve(bins=16), 1.0
    for part in np.array_split(np.arange(len(x)), 7):
        curve.add(x[part], values[part])
    while last >= 16 * width:
        width *= 2
    before = math.nan
    expected = [before := before if one is None else one for one in brute_force(x, values, 16, width, 5)]
    np.testing.assert_allclose(curve.means(5), expected)


def test_no_points_no_means():
    curve = Curve()
    curve.add(np.zeros(0, np.int64), np.zeros(0))
    curve.add(np.array([3]), np.array([math.nan]))
    assert curve.means(10) == []


def test_parts_without_points_repeat_the_one_before():
    curve = Curve(bins=16)
    curve.add(np.array([2, 5]), np.array([1.0, 4.0]))
    assert np.isnan(curve.means(6)[:2]).all()
    assert curve.means(6)[2:] == [1.0, 1.0, 1.0, 4.0]


def test_sparkline():
    assert sparkline([0.0, 7.0, 3.0, math.nan]) == "▁█▄ "
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([math.nan]) == " "
    assert sparkline([]) == ""
