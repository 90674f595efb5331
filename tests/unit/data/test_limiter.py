"""samples_per_insert with a tolerance: bounds that hold at every point, and nobody who waits for ever."""

from __future__ import annotations

import numpy as np
import pytest

from hpcrl.data.limiter import Limiter


def limits(rng):
    """Any legal limits, with as little tolerance as is legal."""
    ratio = float(rng.choice([0.05, 0.5, 1, 3.7, 16, 200]))
    batch, chunk = int(rng.integers(1, 300)), int(rng.integers(1, 300))
    actors = int(rng.integers(1, 5))
    at_once = chunk * actors
    inserts = ratio * at_once
    least = max(inserts, (batch + inserts) / 2) / max(batch, inserts)
    tolerance = float(least * rng.choice([1.0000001, 1.3, 4]))
    settings = {
        "samples_per_insert": ratio,
        "min_size": int(rng.integers(1, 2000)),
        "tolerance": tolerance,
        "batch": batch,
        "inserted_at_once": at_once,
    }
    return settings, chunk, actors, tolerance * max(batch, inserts)


@pytest.mark.parametrize("seed", range(40))
def test_the_balance_stays_inside_and_one_side_can_always_go_on(seed):
    rng = np.random.default_rng(seed)
    settings, chunk, actors, most = limits(rng)
    limiter = Limiter(**settings)
    under_way: list[int] = []
    for step in range(400):
        grant = len(under_way) < actors and limiter.may_insert(chunk * (len(under_way) + 1))
        sample = limiter.may_sample(settings["batch"])
        assert grant or sample or under_way
        moves = ["grant"] * grant + ["sample"] * sample + ["insert"] * bool(under_way)
        move = rng.choice(moves)
        if move == "grant":
            under_way.append(chunk)
        elif move == "insert":
            under_way.pop()
            limiter.insert(int(rng.integers(0, chunk + 1)))  # reset steps do not count
        else:
            limiter.sample(settings["batch"])
        counted = max(limiter.inserted - settings["min_size"], 0)
        exact = settings["samples_per_insert"] * counted - limiter.sampled
        assert abs(exact) <= most * (1 + 1e-12)
        assert limiter.balance == pytest.approx(exact)
        if limiter.inserted < settings["min_size"]:
            assert limiter.sampled == 0
        if step % 100 == 99:  # another attempt
            state, inserted = limiter.state(), limiter.inserted
            limiter = Limiter(**settings)
            limiter.load([state], inserted)
            under_way = []
    assert limiter.inserted > 0


def test_limits_under_which_both_sides_would_wait_are_refused():
    Limiter(samples_per_insert=2, min_size=1, tolerance=0.75, batch=200, inserted_at_once=50)
    with pytest.raises(ValueError, match=r"replay.tolerance=0.7 lets .* use at least 0.75"):
        Limiter(samples_per_insert=2, min_size=1, tolerance=0.7, batch=200, inserted_at_once=50)
    with pytest.raises(ValueError, match=r"use at least 1 "):  # else min_size could not be passed
        Limiter(samples_per_insert=2, min_size=90, tolerance=0.9, batch=10, inserted_at_once=100)


def make(ratio=4.0, min_size=100, tolerance=2.0):
    return Limiter(
        samples_per_insert=ratio, min_size=min_size, tolerance=tolerance, batch=32, inserted_at_once=8
    )


def run_to(limiter, inserted):
    while limiter.inserted < inserted:
        if limiter.may_sample(32):
            limiter.sample(32)
        else:
            limiter.insert(8)


def test_a_changed_ratio_brings_no_burst():
    before = make(ratio=1.0)
    run_to(before, 2000)
    after = make(ratio=16.0)
    after.load([before.state()], before.inserted)
    assert after.inserted == before.inserted and after.sampled == before.sampled
    at_once = 0
    while after.may_sample(32):
        after.sample(32)
        at_once += 32
    assert at_once <= 2 * 2.0 * 16 * 8


def test_a_larger_minimum_size_is_waited_for():
    before = make()
    run_to(before, 200)
    while before.may_insert(8):
        before.insert(8)
    after = make(min_size=1003)
    after.load([before.state()], before.inserted)
    assert not after.may_sample(1)
    while not after.may_sample(32):
        assert after.may_insert(8)
        after.insert(8)
    assert after.inserted >= 1003


def test_an_empty_memory_warms_up_again():
    before = make()
    run_to(before, 2000)
    after = make()
    after.load([before.state()], 0)
    assert not after.may_sample(1)
    assert after.sampled == 0


def test_what_was_drawn_is_divided_among_other_shards():
    parts = []
    for inserted in (304, 896):
        one = make()
        run_to(one, inserted)
        parts.append(one.state())
    shards = [make() for _ in range(3)]
    for shard in shards:
        shard.load(parts, (304 + 896) // 3)
    assert abs(sum(shard.sampled for shard in shards) - sum(part["sampled"][0] for part in parts)) <= 3
    balance = sum(float(part["balance"][0]) for part in parts)
    assert sum(shard.balance for shard in shards) == pytest.approx(balance)


def test_what_may_be_given_back_is_reckoned_with_before_an_insert():
    """A stop gives back what was drawn and not trained on: the balance may not leave the tolerance by that."""
    limiter = Limiter(samples_per_insert=1.0, min_size=1, tolerance=1.0, batch=10, inserted_at_once=10)
    limiter.insert(21)
    limiter.sample(20)
    assert limiter.balance == 0
    assert limiter.may_insert(10) and limiter.may_insert(5, given_back=5)
    assert not limiter.may_insert(5, given_back=6) and not limiter.may_insert(10, given_back=1)
