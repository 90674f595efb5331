"""The gradient path of the reducer: buckets, started in any order, summed in the background."""

import hashlib
import itertools
import time

import numpy as np
import pytest

from hpcrl.config import ConfigError
from tests.mpi.support import different, open_test_world
from tests.mpi.test_reduce import (
    FORMS,
    equal_layouts,
    layouts,
    open_reducer,
    piece,
    reducer_of,
    shards,
    summands,
)

LARGE = 1_000_003
"""Elements of a gradient of several buckets, the last one ragged."""
MIDDLE = 9 * 4096 + 5
"""Just large enough to be summed in the window, a slice for each of four ranks."""


def check_gradient(comm, reducer, size, seed=0):
    """Digest of the result, and its square sum, after comparing them with the exact ones and with the other ranks'."""
    memory = reducer.open_gradient(size)
    assert memory.shape == (size,) and memory.dtype == np.float32 and not memory.any()
    memory[...], exact, magnitude = summands(comm.rank, comm.size, size, np.float32, seed)
    result = reducer.finish([comm.rank + 0.25, 2.0**40])
    assert reducer.extra_sums.tolist() == [sum(range(comm.size)) + 0.25 * comm.size, comm.size * 2.0**40]
    assert (np.abs(result - exact) <= 2 * np.finfo(np.float32).eps * magnitude).all()
    squares = reducer.square_sum()
    assert squares == pytest.approx(float(np.sum(result.astype(np.float64) ** 2)), rel=1e-12)
    found = (hashlib.sha256(result).hexdigest(), squares)
    assert len(set(comm.allgather(found))) == 1
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_size_in_every_layout(comm, form):
    for nodes in different(layouts(comm.size)):
        with open_reducer(comm, nodes, form, bucket_bytes=4 * 8192) as reducer:
            count = shards(nodes)
            for size in {0, 1, count - 1, count, count + 1, 16_384, 16_385, MIDDLE}:
                check_gradient(comm, reducer, size)


@pytest.mark.parametrize("exchange", ["all_gather", "two_phase"])
def test_large_gradients_have_the_same_bits_in_equal_layouts_forms_and_runs(comm, exchange):
    results = []
    for nodes, form, _ in itertools.product(equal_layouts(comm.size), FORMS, range(2)):
        with open_reducer(comm, nodes, form, exchange=exchange) as reducer:
            results.append(check_gradient(comm, reducer, LARGE))
            assert (len(reducer.buckets) > 1) == (form == "shared" and comm.size > 1)
    bits, squares = zip(*results, strict=True)
    assert len(set(bits)) == 1
    if comm.size > 1:  # a single learner adds the squares up without compiled code
        assert len(set(squares)) == 1


def test_large_gradients_on_uneven_nodes(comm):
    for nodes in ("aaab", "abaa", "abbc"):
        with open_reducer(comm, nodes[-comm.size :]) as reducer:
            check_gradient(comm, reducer, LARGE)


def fill(comm, memory, part, number):
    """Integers, so that their sums are exact."""
    index = np.arange(part.start, part.stop) % 1000
    memory[part.start : part.stop] = index * (comm.rank + 1) + 100 * number


def right(comm, result, number):
    index = np.arange(result.size) % 1000
    expected = index * (comm.size * (comm.size + 1) // 2) + 100 * number * comm.size
    return np.array_equal(result, expected.astype(np.float32))


def pause(rng):
    if rng.random() < 0.2:
        time.sleep(rng.random() * 0.002)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exchange", ["all_gather", "two_phase"])
def test_ranks_that_are_slow_now_and_then_never_see_a_wrong_number(comm, form, exchange):
    """P03, P75, P76: buckets started in an order of each rank's own, many gradients with no barrier between."""
    rng = np.random.default_rng(comm.rank)
    for nodes in different(["aaaa", "aabb", "abbb", "abcd"]):
        options = {"form": form, "exchange": exchange, "bucket_bytes": 4 * 4096}
        with open_reducer(comm, nodes[: comm.size], **options) as reducer:
            memory = reducer.open_gradient(MIDDLE)
            for number in range(30):
                order = rng.permutation(len(reducer.buckets))
                early = rng.integers(len(order) + 1)
                for bucket in order[:early]:
                    fill(comm, memory, reducer.buckets[bucket], number)
                    reducer.start(bucket)
                    pause(rng)
                    reducer.poll()
                for bucket in order[early:]:
                    fill(comm, memory, reducer.buckets[bucket], number)
                result = reducer.finish([number])
                pause(rng)
                assert right(comm, result, number)
                assert reducer.extra_sums.tolist() == [number * comm.size]


@pytest.mark.parametrize("form", FORMS)
def test_small_sums_and_votes_by_ranks_that_are_slow_now_and_then(comm, form):
    rng = np.random.default_rng(comm.rank)
    for nodes in different(["aaaa", "aabb", "abbb", "abcd"]):
        with open_reducer(comm, nodes[: comm.size], form) as reducer:
            memory = reducer.open_gradient(100)
            for number in range(60):
                fill(comm, memory, range(100), number)
                assert right(comm, reducer.finish(), number)
                pause(rng)
                vector = np.full(3, comm.rank + number, np.float64)
                reducer.sum_array(vector)
                pause(rng)
                assert (vector == sum(range(comm.size)) + number * comm.size).all()
                assert reducer.any_true(number % comm.size == comm.rank and number % 3 == 0) == (
                    number % 3 == 0
                )


def test_a_bucket_is_not_summed_before_all_have_started_it(comm):
    with open_reducer(comm, form="shared", bucket_bytes=4 * 4096) as reducer:
        memory = reducer.open_gradient(MIDDLE)
        if comm.rank > 0:
            for bucket in reversed(range(len(reducer.buckets))):
                fill(comm, memory, reducer.buckets[bucket], 1)
                reducer.start(bucket)
                reducer.poll()
            comm.Barrier()
        else:
            comm.Barrier()  # all others have started everything
            fill(comm, memory, range(MIDDLE), 1)
        assert right(comm, reducer.finish(), 1)


def test_a_bucket_is_started_once(comm):
    with open_reducer(comm, form="shared") as reducer:
        reducer.open_gradient(MIDDLE)
        if comm.size == 1:
            return
        reducer.start(0)
        with pytest.raises(RuntimeError, match="bucket 0 of this gradient has been started already"):
            reducer.start(0)
        reducer.finish()
        reducer.start(0)
        reducer.finish()


def test_nothing_is_summed_before_a_gradient_is_open(comm):
    with open_reducer(comm) as reducer, pytest.raises(RuntimeError, match="no gradient is open"):
        reducer.finish()


def test_the_result_is_shared_and_read_only(comm):
    with open_reducer(comm, form="shared") as reducer:
        memory = reducer.open_gradient(MIDDLE)
        result = reducer.finish()
        if comm.size > 1:
            with pytest.raises(ValueError, match="read-only"):
                result[0] = 1
            assert not np.shares_memory(result, memory)


def test_gradients_of_other_sizes_one_after_another(comm):
    with open_reducer(comm, "aabb"[: comm.size]) as reducer:
        for size in (100, MIDDLE, 0, 2 * MIDDLE, 7):
            check_gradient(comm, reducer, size)


def test_not_finite_anywhere_is_not_finite_everywhere(comm):
    for size, value in itertools.product((100, MIDDLE), (np.nan, np.inf)):
        with open_reducer(comm, "aabb"[: comm.size]) as reducer:
            memory = reducer.open_gradient(size)
            if comm.rank == comm.size - 1:
                memory[size // 2] = value
            reducer.finish([0.0])
            assert not np.isfinite(reducer.square_sum())


def test_compression_keeps_learners_equal_and_loses_nothing_for_good(comm):
    """Error feedback: what was summed so far, plus what is kept, is what was given."""
    for nodes, compression in itertools.product(("aabb", "abbb"), ("bf16", "int8", "topk")):
        options = {"compression": compression, "warmup_updates": 2, "exchange": "all_gather"}
        with open_reducer(comm, nodes[: comm.size], **options) as reducer:
            memory = reducer.open_gradient(MIDDLE, [range(10, 20), range(30_000, 30_004)])
            total, exact = np.zeros(MIDDLE), np.zeros(MIDDLE)
            for update in range(8):
                reducer.begin_update(update)
                pieces = [piece(rank, MIDDLE, np.float32, update) for rank in range(comm.size)]
                memory[...] = pieces[comm.rank]
                result = reducer.finish()
                once = np.sum(pieces, axis=0, dtype=np.float64)
                assert len(set(comm.allgather(hashlib.sha256(result).hexdigest()))) == 1
                rounding = 1e-6 * np.sum(np.abs(pieces), axis=0, dtype=np.float64)
                off = np.abs(result - once)
                assert (off[10:20] <= rounding[10:20]).all()
                across = "b" in nodes[: comm.size]
                assert (off <= rounding).all() == (not across or update < 2)
                total += result
                exact += once
            kept = comm.allreduce(sum(np.abs(residual).sum() for residual in reducer.state().values()))
            assert (kept > 0) == (across and compression != "bf16")
            if compression != "bf16":
                assert np.abs(total - exact).sum() <= kept + 1e-5 * np.abs(exact).sum()


def test_the_state_of_compression_goes_on_where_it_was(comm):
    results = []
    for interrupted in (False, True):
        with open_reducer(comm, "aabb"[: comm.size], compression="int8", warmup_updates=0) as reducer:
            memory = reducer.open_gradient(MIDDLE)
            reducer.begin_update(0)
            for turn in range(4):
                if interrupted and turn == 2:
                    state = reducer.state()
                    reducer.open_gradient(1)
                    memory = reducer.open_gradient(MIDDLE)
                    reducer.load_state(state)
                memory[...] = piece(comm.rank, MIDDLE, np.float32, turn)
                result = reducer.finish().tobytes()
            results.append(result)
            with pytest.raises(ValueError, match=r"holds something|another network"):
                reducer.load_state({"exchange0/residual": np.zeros(3, np.float32)})
    assert results[0] == results[1]


def test_two_phase_does_not_compress(comm):
    with open_test_world(comm) as world:
        if comm.size > 1:
            with pytest.raises(ConfigError, match="two_phase is always exact"):
                reducer_of(world, exchange="two_phase", compression="int8")


def test_the_description_says_what_was_chosen(comm):
    expected = {
        ("aaaa", "none"): "on 1 node: in shared memory",
        ("abcd", "none"): {2: "all_gather across", 3: "two_phase across", 4: "two_phase across"},
        ("abcd", "bf16"): {2: "compressed (bf16", 3: "compressed (bf16", 4: "not compressed"},
    }
    for (nodes, compression), text in expected.items():
        with open_reducer(comm, nodes[: comm.size], compression=compression) as reducer:
            wanted = text if isinstance(text, str) else text.get(comm.size)
            assert comm.size == 1 or wanted in reducer.description
