"""Robust statistics against vectors of rliable and against slow references."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import robust

ORACLES = Path(__file__).parents[2] / "golden" / "oracles" / "aggregates.json"
CASES = json.loads(ORACLES.read_text())["cases"]


def tasks_of(rows):
    return list(np.array(rows, float).T)


def of_kind(kind):
    found = [case for case in CASES if case["kind"] == kind]
    assert found
    return pytest.mark.parametrize("case", found, ids=lambda case: case["name"])


@of_kind("aggregate")
def test_aggregates_are_those_of_rliable(case):
    tasks, expected = tasks_of(case["inputs"]["scores"]), case["expected"]
    functions = {"iqm": robust.iqm, "mean": robust.mean, "median": robust.median}
    functions["optimality_gap"] = robust.optimality_gap
    for name, function in functions.items():
        assert function([task[None] for task in tasks])[0] == pytest.approx(expected[name], abs=1e-6)


@of_kind("probability_of_improvement")
def test_the_probability_of_improvement_is_that_of_rliable(case):
    first, second = (tasks_of(case["inputs"][name]) for name in ("x", "y"))
    found = robust.probability_of_improvement(first, second, resamples=0)
    assert found.value == pytest.approx(case["expected"]["probability_of_improvement"], abs=1e-9)
    assert np.isnan(found.low) and np.isnan(found.high)


@of_kind("stratified_bootstrap")
def test_intervals_are_those_of_rliable(case):
    found = robust.estimate(tasks_of(case["inputs"]["scores"]), robust.iqm, resamples=20_000)
    expected = [case["expected"][name] for name in ("point", "ci95_low", "ci95_high")]
    assert list(found) == pytest.approx(expected, abs=case["tolerance"]["abs"])


def test_the_bootstrap_draws_seeds_anew_inside_each_task():
    """A plain loop over the same random numbers; tasks have different numbers of seeds."""
    tasks = [np.array([1.0, 5.0, 2.0, 9.0, 4.0]), np.array([10.0, 30.0])]
    drawn = robust.bootstrap(tasks, robust.iqm, resamples=50, seed=3)
    rng = np.random.default_rng(3)
    places = [rng.integers(len(task), size=(50, len(task))) for task in tasks]
    for index in range(50):
        every = sorted(task[place] for task, rows in zip(tasks, places, strict=True) for place in rows[index])
        assert drawn[index] == pytest.approx(
            sum(every[1:-1]) / 5
        )  # 7 scores: floor(7 / 4) = 1 cut at each end


def test_blocks_of_resamples_change_nothing_but_the_order(monkeypatch):
    tasks = [np.arange(5.0)]
    whole = robust.bootstrap(tasks, robust.mean, resamples=20, seed=0)
    monkeypatch.setattr(robust, "_BLOCK", 7)
    assert robust.bootstrap(tasks, robust.mean, resamples=20, seed=0).tolist() == whole.tolist()


def test_the_difference_pairs_the_resamples_of_both():
    one, other = [np.array([3.0, 4.0, 5.0])], [np.array([1.0, 1.0, 1.0])]
    found = robust.difference(one, other, robust.mean, resamples=2_000)
    assert found.value == 3.0 and 2.0 <= found.low < 3.0 < found.high <= 4.0


def all_shuffles(first, second):
    """p by trying every way to say whose a run is, in every task."""

    def wins(one, other):
        return np.mean([(a > b) + 0.5 * (a == b) for a in one for b in other])

    def ways(one, other):
        every = [*one, *other]
        for chosen in itertools.combinations(range(len(every)), len(one)):
            rest = [place for place in range(len(every)) if place not in chosen]
            yield wins([every[place] for place in chosen], [every[place] for place in rest])

    pairs = list(zip(first, second, strict=True))
    seen = np.mean([wins(one, other) for one, other in pairs])
    null = [np.mean(each) for each in itertools.product(*(list(ways(*pair)) for pair in pairs))]
    return np.mean([abs(value - 0.5) >= abs(seen - 0.5) - 1e-12 for value in null])


@pytest.mark.parametrize("sizes", [[(3, 3)], [(4, 2)], [(2, 3), (3, 2)]])
@pytest.mark.parametrize("ties", [False, True])
def test_p_is_that_of_every_shuffle(sizes, ties):
    rng = np.random.default_rng(len(sizes) + ties)
    first, second = [], []
    for mine, theirs in sizes:
        for into, count in ((first, mine), (second, theirs)):
            values = rng.normal(size=count)
            into.append(np.round(values) if ties else values)
    assert robust.permutation_p(first, second) == pytest.approx(all_shuffles(first, second))


def test_many_shuffles_come_near_the_exact_p():
    rng = np.random.default_rng(0)
    first, second = [rng.normal(0.8, size=6)], [rng.normal(size=6)]
    exact = robust.permutation_p(first, second)
    assert robust.permutation_p(first, second, resamples=900) == pytest.approx(exact, abs=0.05)


def test_the_smallest_p_is_that_of_complete_separation():
    sizes = [(3, 4), (2, 2)]
    low, high = (
        [np.arange(n) + shift for n in side]
        for side, shift in zip(zip(*sizes, strict=True), (0, 100), strict=True)
    )
    assert robust.permutation_p(low, high) == pytest.approx(robust.smallest_p(sizes)) == 2 / (35 * 6)


def test_holm_multiplies_by_what_is_left_and_keeps_the_order():
    assert robust.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert robust.holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_profile_is_the_share_above_each_threshold():
    tasks = [np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0])]
    assert robust.performance_profile(tasks, np.array([0.0, 2.0, 3.5])).tolist() == [1.0, 0.25, 0.125]
