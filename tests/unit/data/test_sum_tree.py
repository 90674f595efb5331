"""Draws in proportion to priorities: sums that do not drift, and never a slot that is empty."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hpcrl.config import ReplayConfig
from hpcrl.data.priorities import EPSILON, Priorities, sequence_priorities
from hpcrl.data.sum_tree import SumTree, tree_bytes

ORACLES = Path(__file__).parents[2] / "golden" / "oracles"
PER = json.loads((ORACLES / "per.json").read_text())["cases"]
SEQUENCES = [
    case
    for case in json.loads((ORACLES / "r2d2_apex.json").read_text())["cases"]
    if case["kind"] == "sequence_priority"
]
CAPACITIES = [1, 3, 7, 8, 9, 65, 100, 1023]


@pytest.mark.parametrize("case", PER, ids=lambda case: case["name"])
def test_total_probabilities_and_look_up_are_those_of_other_libraries(case):
    inputs, expected = case["inputs"], case["expected"]
    tree = SumTree(inputs["capacity"])
    leaves = np.array(inputs["priorities"]) ** inputs["alpha"]
    tree.assign(np.arange(len(leaves)), leaves)
    np.testing.assert_allclose(tree.total, expected["total"], rtol=1e-6)
    np.testing.assert_allclose(tree.leaves[: len(leaves)] / tree.total, expected["probabilities"], rtol=1e-6)
    found = tree.find(np.array(inputs["prefix_fractions"]) * tree.total)
    assert found.tolist() == expected["index_for_prefix"]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_root_is_the_sum_after_a_million_updates_over_twelve_orders_of_magnitude(capacity):
    rng = np.random.default_rng(capacity)
    tree, reference = SumTree(capacity), np.zeros(capacity)
    filled = max(2 * capacity // 3, 1)
    for _ in range(20):
        slots = rng.integers(0, filled, 50_000)
        values = 10 ** rng.uniform(-6, 6, len(slots))
        tree.assign(slots, values)
        reference[slots] = values  # numpy, too, keeps the last of equal ones
        assert (tree.leaves == reference).all()
        assert tree.total == pytest.approx(math.fsum(reference), rel=4e-16 * math.log2(8 * capacity))
        assert tree.draw(1000, rng).max() < filled
    assert tree.nbytes == tree_bytes(capacity)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_sums_of_dyadic_priorities_are_exact(capacity):
    rng = np.random.default_rng(capacity)
    tree = SumTree(capacity)
    for _ in range(50):
        tree.assign(rng.integers(0, capacity, 100), 2.0 ** rng.integers(-19, 20, 100))
        assert tree.total == math.fsum(tree.leaves)
    total = tree.total
    tree.rebuild()
    assert tree.total == total


@pytest.mark.parametrize("capacity", [1, 3, 7, 100, 1023])
def test_slots_are_drawn_as_often_as_their_priorities_say(capacity):
    rng = np.random.default_rng(1)
    tree = SumTree(capacity)
    slots = rng.permutation(capacity)[: max(capacity * 3 // 4, 1)]
    tree.assign(slots, rng.uniform(0.2, 3, len(slots)))
    draws, count = 40 * capacity, 25
    counts = sum(np.bincount(tree.draw(count, rng), minlength=capacity) for _ in range(draws))
    expected = tree.leaves / tree.total * draws * count
    assert (counts[expected == 0] == 0).all()
    inside = expected > 0
    chi_square = ((counts - expected)[inside] ** 2 / expected[inside]).sum()
    freedom = inside.sum() - 1
    # parts of the total make it smaller than of independent draws; 5 sigma above is wrong in any case
    assert chi_square <= freedom + 5 * math.sqrt(2 * freedom)


def test_prefixes_at_the_borders_of_leaves_and_at_the_total():
    tree = SumTree(20)
    tree.assign(np.array([2, 3, 17]), np.array([1.0, 2.0, 4.0]))
    prefixes = np.array([0, np.nextafter(1, 0), 1, np.nextafter(3, 0), 3, np.nextafter(7, 0), 7, 8])
    assert tree.find(prefixes).tolist() == [2, 2, 3, 3, 17, 17, 17, 17]


def test_what_rounding_leaves_over_falls_on_the_last_slot_that_is_not_empty():
    rng = np.random.default_rng(0)
    tree = SumTree(700)
    for _ in range(30):
        tree.assign(rng.integers(0, 600, 300), 10 ** rng.uniform(-8, 8, 300))
        tree.assign(rng.integers(0, 700, 200), np.zeros(200))
        found = tree.find(np.array([tree.total, np.nextafter(tree.total, 0), tree.total * 1.0001]))
        assert (tree.leaves[found] > 0).all()


def test_a_tree_of_nothing_is_refused():
    with pytest.raises(ValueError, match="1 or more"):
        SumTree(0)


def prioritized(alpha=0.6):
    return Priorities(ReplayConfig(sampling="prioritized", alpha=alpha))


def test_bad_priorities_are_refused_and_counted_and_zero_is_floored():
    priorities = prioritized(0.5)
    td = np.array([0, -1, np.nan, np.inf, -np.inf, 4], np.float32)
    good = priorities.accept(td)
    assert good.tolist() == [True, False, False, False, False, True]
    assert priorities.refused == 4
    np.testing.assert_allclose(priorities.powers(td[good]), [EPSILON**0.5, (4 + EPSILON) ** 0.5])
    assert priorities.largest == 4
    np.testing.assert_allclose(priorities.newest, (4 + EPSILON) ** 0.5)


def test_a_first_priority_that_is_refused_becomes_the_largest():
    priorities = prioritized(1.0)
    first = priorities.first(np.array([0.5, np.nan, -1, 3], np.float32))
    np.testing.assert_allclose(first, [0.5, 1, 1, 3], atol=2e-6)
    assert (priorities.refused, priorities.largest) == (2, 3)


def test_uniform_sampling_takes_no_notice_of_priorities():
    priorities = Priorities(ReplayConfig(sampling="uniform"))
    assert priorities.powers(np.array([0, 5], np.float32)).tolist() == [1, 1]
    assert priorities.first(np.array([0, 5], np.float32)).tolist() == [1, 1]
    assert priorities.newest == 1


@pytest.mark.parametrize("case", SEQUENCES, ids=lambda case: case["name"])
def test_priorities_of_sequences_are_those_of_the_paper(case):
    inputs = case["inputs"]
    td = np.array(inputs["abs_td"], np.float32)[:, None]
    valid = np.array(inputs.get("valid", inputs.get("mask", [1] * len(td))), bool)[:, None]
    td = np.where(valid, td, 99)
    assert sequence_priorities(td.astype(np.float32), valid, inputs["eta"])[0] == pytest.approx(
        case["expected"]["priority"], rel=1e-6
    )
