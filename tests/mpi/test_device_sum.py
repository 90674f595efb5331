"""Gradients that are tensors, summed by torch.distributed: with gloo on the CPU, the legs that nccl takes on GPUs."""

import hashlib
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from hpcrl.comm.device_sum import DeviceReducer
from hpcrl.comm.devices import agree_on_devices
from hpcrl.comm.reduce import HierarchicalReducer
from hpcrl.config import ConfigError, ReductionConfig
from tests.mpi.support import open_test_world
from tests.mpi.test_reduce import equal_layouts, layouts, piece, shards, summands

LARGE = 1_000_003
CPU = torch.device("cpu")


@contextmanager
def open_device_reducer(comm, nodes=None, timeout_s=60.0):
    with open_test_world(comm, nodes) as world:
        host = HierarchicalReducer(world.learners, world.waiter, ReductionConfig(form="torch"), debug=True)
        reducer = DeviceReducer(world.learners, host, world.waiter, CPU, timeout_s)
        yield reducer
        reducer.close()
        host.close()


def check_gradient(comm, reducer, size, seed=0):
    """The sum's bytes, after comparing it and its square sum with the exact ones and with the other ranks'."""
    memory = reducer.open_gradient(size)
    assert memory.shape == (size,) and memory.dtype == torch.float32
    assert reducer.buckets == (range(size),)
    mine, exact, magnitude = summands(comm.rank, comm.size, size, np.float32, seed)
    memory.copy_(torch.from_numpy(mine))
    result = reducer.finish([comm.rank + 0.25, 2.0**40]).numpy()
    assert reducer.extra_sums.tolist() == [sum(range(comm.size)) + 0.25 * comm.size, comm.size * 2.0**40]
    assert result.shape == (size,)
    assert (np.abs(result - exact) <= 2 * np.finfo(np.float32).eps * magnitude).all()
    squares = reducer.square_sum()
    assert squares == pytest.approx(float(np.sum(result.astype(np.float64) ** 2)), rel=1e-12)
    assert len(set(comm.allgather((hashlib.sha256(result).hexdigest(), squares)))) == 1
    return result.tobytes()


def test_every_size_in_every_layout(comm):
    for nodes in layouts(comm.size):
        with open_device_reducer(comm, nodes) as reducer:
            count = shards(nodes)
            for size in sorted({0, 1, count - 1, count, count + 1, 61}):
                check_gradient(comm, reducer, size, seed=size)
                check_gradient(comm, reducer, size, seed=size + 1)


@pytest.mark.parametrize("nodes", ["aaaa", "aabb", "aaab", "abcd"])
def test_large_gradients(comm, nodes):
    with open_device_reducer(comm, nodes[-comm.size :]) as reducer:
        check_gradient(comm, reducer, LARGE)


def test_the_bits_are_those_of_sums_in_host_memory(comm):
    """Where the order of the tree is the same, the result is, and from run to run."""
    results = set()
    for nodes in equal_layouts(comm.size):
        for _ in range(2):
            with open_device_reducer(comm, nodes) as reducer:
                results.add(check_gradient(comm, reducer, 40_961))
        with open_test_world(comm, nodes) as world:
            host = HierarchicalReducer(world.learners, world.waiter)
            memory = host.open_gradient(40_961)
            memory[...] = piece(comm.rank, 40_961, np.float32)
            results.add(host.finish().tobytes())
            host.close()
    assert len(results) == 1


def test_learners_that_are_slow_now_and_then_never_see_a_wrong_number(comm):
    """Many gradients with no barrier between; integers, so that their sums are exact."""
    rng = np.random.default_rng(comm.rank)
    index = torch.arange(1001) % 100
    for nodes in ("aabb", "abbb"):
        with open_device_reducer(comm, nodes[: comm.size]) as reducer:
            memory = reducer.open_gradient(1001)
            for number in range(40):
                memory.copy_(index * (comm.rank + 1) + number)
                result = reducer.finish([number])
                time.sleep(rng.random() * 0.001)
                assert torch.equal(
                    result, (index * (comm.size * (comm.size + 1) // 2) + number * comm.size).float()
                )
                assert reducer.extra_sums.tolist() == [number * comm.size]


def test_not_finite_anywhere_is_not_finite_everywhere(comm):
    for value in (np.nan, np.inf):
        with open_device_reducer(comm, "aabb"[: comm.size]) as reducer:
            memory = reducer.open_gradient(100)
            if comm.rank == comm.size - 1:
                memory[50] = value
            reducer.finish([0.0])
            assert not np.isfinite(reducer.square_sum())
            memory[50] = 1.0
            reducer.finish([0.0])
            assert reducer.square_sum() == comm.size**2


def test_vectors_are_summed_in_place(comm):
    with open_device_reducer(comm) as reducer:
        for dtype in (torch.float32, torch.float64):
            vector = torch.arange(5, dtype=dtype) + comm.rank
            reducer.sum_(vector)
            assert vector.tolist() == [index * comm.size + sum(range(comm.size)) for index in range(5)]


def test_nothing_is_summed_before_a_gradient_is_open(comm):
    with open_device_reducer(comm) as reducer, pytest.raises(RuntimeError, match="no gradient is open"):
        reducer.finish()


@pytest.mark.parametrize("nodes", ["aaaa", "abcd"])
def test_nobody_waits_for_ever_for_a_learner_that_does_not_come(comm, nodes):
    with open_device_reducer(comm, nodes[: comm.size], timeout_s=1.0) as reducer:
        reducer.open_gradient(10)
        if comm.rank and comm.size > 1:
            with pytest.raises((RuntimeError, TimeoutError)):
                reducer.finish()
        comm.Barrier()


def test_a_short_limit_of_a_sum_is_none_of_the_start(comm, monkeypatch):
    start = torch.distributed.init_process_group

    def start_late(*args, **options):
        time.sleep(1.0 * (comm.rank == comm.size - 1))
        start(*args, **options)

    monkeypatch.setattr("torch.distributed.init_process_group", start_late)
    with open_test_world(comm) as world:
        host = HierarchicalReducer(world.learners, world.waiter, ReductionConfig(form="torch"), debug=True)
        reducer = DeviceReducer(world.learners, host, world.waiter, CPU, timeout_s=0.1)
        assert reducer.open_gradient(61).shape == (61,)
        reducer.close()
        host.close()


def test_what_never_comes_is_named_with_the_key_of_its_limit(comm):
    with open_device_reducer(comm, timeout_s=0.3) as reducer:
        if comm.size > 1:
            with pytest.raises(TimeoutError, match=r"longer than reduction\.timeout_s=0\.3"):
                reducer._groups._until(lambda: False)


def test_the_description_names_the_backend(comm):
    with open_device_reducer(comm, "abcd"[: comm.size]) as reducer:
        text = (
            "nothing to sum" if comm.size == 1 else f"{comm.size} nodes, on cpu: by torch.distributed (gloo)"
        )
        assert text in reducer.description


def give_gpus(monkeypatch, index):
    monkeypatch.setattr("hpcrl.comm.devices._own_gpu", lambda comms: index)


@pytest.mark.parametrize("wanted", ["cuda", "auto"])
def test_learners_take_the_gpus_of_their_nodes(comm, monkeypatch, wanted):
    """Learners only, and every rank knows all of them."""
    with open_test_world(comm) as world:
        give_gpus(monkeypatch, comm.rank % 2)
        assert agree_on_devices(world, wanted) == "cuda"
        assert [seat["device"] for seat in world.seats] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"][
            : comm.size
        ]
        assert torch.device(world.seats[comm.rank]["device"]).index == comm.rank % 2
        assert agree_on_devices(world, "cpu") == "cpu"


def test_one_learner_without_a_gpu_decides_for_all(comm, monkeypatch):
    nodes = "abcd"[: comm.size]
    with open_test_world(comm, nodes) as world:
        give_gpus(monkeypatch, -1 if comm.rank == comm.size - 1 else 0)
        assert agree_on_devices(world, "auto") == "cpu"
        with pytest.raises(ConfigError, match=f"no GPU for the learners on {nodes[-1]};"):
            agree_on_devices(world, "cuda")
        assert {seat["device"] for seat in world.seats} == {"cpu"}


def test_without_a_gpu_there_is_none(comm, monkeypatch):
    with open_test_world(comm) as world:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        assert agree_on_devices(world, "auto") == "cpu"
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
        assert agree_on_devices(world, "auto") == "cuda"
        assert world.seats[comm.rank]["device"] == f"cuda:{world.learners.node.rank % 3}"
