import functools
import hashlib
import itertools
import time
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

from hpcrl.comm.reduce import HierarchicalReducer
from hpcrl.config import ConfigError, ReductionConfig
from tests.mpi.support import different, open_test_world

DTYPES = (np.float32, np.float64)
FORMS = ("shared", "messages")


def layouts(size):
    """Every way to divide the ranks over nodes: strings like aabc, one letter per rank."""
    found = [""]
    for _ in range(size):
        found = [one + letter for one in found for letter in "abcd"[: len(set(one)) + 1]]
    return found


def shards(nodes):
    return min(nodes.count(node) for node in set(nodes))


def piece(rank, size, dtype, seed=0):
    rng = np.random.default_rng([rank, size, seed])
    scales = np.resize(10.0 ** np.arange(-4, 4), size)
    return (rng.standard_normal(size) * scales).astype(dtype)


@functools.lru_cache(maxsize=8)
def summands(rank, ranks, size, dtype, seed=0):
    """The piece of a rank, the exact sum of all ranks' pieces and that of their magnitudes.

    Kept for the next sum of the same, because those of long ones take longer to draw than to sum.
    """
    pieces = [piece(other, size, dtype, seed) for other in range(ranks)]
    exact = np.sum(pieces, axis=0, dtype=np.float64)
    return pieces[rank], exact, np.sum(np.abs(pieces), axis=0, dtype=np.float64)


def reducer_of(world, form="auto", debug=False, **reduction):
    return HierarchicalReducer(
        world.learners, world.waiter, ReductionConfig(form=form, **reduction), debug=debug
    )


@contextmanager
def open_reducer(comm, nodes=None, form="auto", debug=False, **reduction):
    with open_test_world(comm, nodes) as world:
        reducer = reducer_of(world, form, debug, **reduction)
        yield reducer
        reducer.close()


def equal_layouts(size):
    """Layouts for which the order of the tree is the same."""
    return {1: ["a"], 2: ["aa", "ab"], 3: ["aaa", "abc"], 4: ["aaaa", "aabb", "abcd"]}[size]


def check_sum(comm, reducer, size, dtype, seed=0):
    """The summed vector's bytes, after comparing it with the exact sum, with other ranks and with a second run."""
    mine, exact, magnitude = summands(comm.rank, comm.size, size, dtype, seed)
    vectors = [mine.copy() for _ in range(2)]
    for vector in vectors:
        reducer.sum_array(vector)
    assert vectors[0].dtype == dtype
    assert (np.abs(vectors[0] - exact) <= 2 * np.finfo(dtype).eps * magnitude).all()
    assert vectors[0].tobytes() == vectors[1].tobytes()
    digests = comm.allgather(hashlib.sha256(vectors[0].tobytes()).hexdigest())
    assert len(set(digests)) == 1
    return vectors[0].tobytes()


def test_there_are_as_many_layouts_as_partitions():
    assert [len(layouts(size)) for size in (1, 2, 3, 4)] == [1, 2, 5, 15]


@pytest.mark.parametrize("form", FORMS)
def test_small_sums_in_every_layout(comm, form):
    for nodes in different(layouts(comm.size)):
        with open_reducer(comm, nodes, form) as reducer:
            count = shards(nodes)
            for size, dtype in itertools.product({0, 1, count - 1, count, count + 1, 61}, DTYPES):
                check_sum(comm, reducer, size, dtype)


@pytest.mark.parametrize("form", FORMS)
def test_long_sums(comm, form):
    for nodes, dtype in (("aabb"[-comm.size :], np.float32), ("aaaa"[-comm.size :], np.float64)):
        with open_reducer(comm, nodes, form) as reducer:
            check_sum(comm, reducer, 1_000_003, dtype)


def test_power_of_two_layouts_and_both_forms_are_bit_identical(comm):
    results = set()
    for nodes in different(equal_layouts(comm.size)):
        for form in FORMS:
            with open_reducer(comm, nodes, form) as reducer:
                results.add(check_sum(comm, reducer, 999, np.float32, seed=5))
    assert len(results) == 1


def test_a_sum_over_one_learner_is_the_vector_itself(comm):
    alone = comm.Split(comm.rank, 0)
    with open_reducer(alone, debug=True) as reducer:
        vector = piece(comm.rank, 7, np.float32)
        reducer.sum_array(vector)
        assert np.array_equal(vector, piece(comm.rank, 7, np.float32))
        assert reducer.any_true(True) and not reducer.any_true(False)
        assert reducer.sent_bytes == 0
    alone.Free()


def test_nothing_is_sent_inside_a_node(comm):
    """The counter would rise: it does with messages, and across nodes."""
    for nodes, form in (("aaaa", "shared"), ("aaaa", "messages"), ("abcd", "shared")):
        with open_reducer(comm, nodes[: comm.size], form) as reducer:
            check_sum(comm, reducer, 100, np.float32)
            assert (reducer.sent_bytes > 0) == (comm.size > 1 and (nodes, form) != ("aaaa", "shared"))


@pytest.mark.parametrize("form", FORMS)
def test_sums_of_different_sizes_and_types_one_after_another(comm, form):
    with open_reducer(comm, "abca"[: comm.size], form, debug=True) as reducer:
        for step in range(50):
            check_sum(comm, reducer, (step * 37) % 101, DTYPES[step % 2], seed=step)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("debug", [False, True])
def test_any_true(comm, debug, form):
    for nodes in different(layouts(comm.size)[:: comm.size]):
        with open_reducer(comm, nodes, form, debug) as reducer:
            for flags in itertools.product((False, True), repeat=comm.size):
                assert reducer.any_true(flags[comm.rank]) is any(flags)


def test_broadcast_of_learner_0(comm):
    with open_reducer(comm, debug=True) as reducer:
        for size, dtype in itertools.product((0, 1, 10_007), DTYPES):
            vector = piece(comm.rank, size, dtype)
            reducer.broadcast_array(vector)
            assert np.array_equal(vector, piece(0, size, dtype))


@pytest.mark.parametrize("form", FORMS)
def test_nobody_passes_a_barrier_early(comm, form):
    window = MPI.Win.Allocate_shared(8 if comm.rank == 0 else 0, 8, comm=comm)
    count = np.frombuffer(window.Shared_query(0)[0], np.int64)
    window.Lock_all()
    count[...] = 0
    comm.Barrier()
    with open_reducer(comm, "aabb"[: comm.size], form) as reducer:
        for turn in range(20):
            if turn % comm.size == comm.rank:
                time.sleep(0.002)
                count[0] = turn + 1
            reducer.barrier()
            window.Sync()
            assert count[0] == turn + 1
            reducer.barrier()
    window.Unlock_all()
    window.Free()


def test_a_message_gets_on_while_its_sender_waits_in_a_sum(comm):
    """Without MPI calls in the wait, rank 0 would wait for the others and they for its message."""
    with open_reducer(comm) as reducer:
        vectors = np.full(
            (500, 4096), 7, np.uint8
        )  # more than the library takes at once, which is less than 200
        requests = []
        last = comm.size - 1
        if comm.rank == 0 < last:
            requests = [comm.Isend(vector, last) for vector in vectors]
        elif comm.rank == last > 0:
            vectors[...] = 0
            for vector in vectors:
                comm.Recv(vector, 0)
        assert reducer.any_true(comm.rank == 0)
        MPI.Request.Waitall(requests)
        assert (vectors == 7).all()


def test_shared_memory_that_is_too_small(comm, monkeypatch):
    monkeypatch.setattr("hpcrl.comm.window.shared_memory_left", lambda: 1000 if comm.rank == 0 else 1 << 40)
    with open_reducer(comm) as reducer:
        assert comm.size == 1 or "messages" in reducer.description
        check_sum(comm, reducer, 100, np.float32)
    with open_test_world(comm) as world:
        if comm.size > 1:
            with pytest.raises(ConfigError, match="too little shared memory"):
                reducer_of(world, "shared")


def another_size(reducer):
    reducer.sum_array(np.zeros(4, np.float32))


def another_type(reducer):
    reducer.sum_array(np.zeros(3, np.float64))


def another_operation(reducer):
    reducer.any_true(False)


@pytest.mark.parametrize("deviation", [another_size, another_type, another_operation])
def test_a_fingerprint_names_the_first_differing_rank(comm, deviation):
    for culprits in itertools.product((False, True), repeat=comm.size):
        if deviation is not another_size and sum(culprits) != 1:
            continue  # who is named depends on who differs, not on how
        with open_reducer(comm, debug=True) as reducer:
            first = next((rank for rank in range(comm.size) if culprits[rank] != culprits[0]), None)

            def step(reducer=reducer, mine=culprits[comm.rank]):
                (deviation if mine else lambda one: one.sum_array(np.zeros(3, np.float32)))(reducer)

            if first is None:
                step()
                continue
            with pytest.raises(
                RuntimeError, match=rf"learner {first} is about to call .* while learner 0 calls"
            ):
                step()


@pytest.mark.parametrize("left_out", [0, 1])
def test_a_learner_that_leaves_out_a_collective_is_named(comm, left_out):
    """P75: an update is a chain of collectives of different sizes; who skips one meets the others at the wrong one."""
    chain = [another_size, another_type, another_operation]
    for culprit in range(comm.size):
        with open_reducer(comm, debug=True) as reducer:
            mine = [one for number, one in enumerate(chain) if (number, comm.rank) != (left_out, culprit)]
            for operation in mine[:left_out]:
                operation(reducer)
            if comm.size == 1:
                continue
            named = culprit or 1  # the first that differs from learner 0
            with pytest.raises(RuntimeError, match=f"learner {named} is about to call"):
                mine[left_out](reducer)
