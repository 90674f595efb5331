"""Batches in and parameters out: on the CPU nothing is copied, on a device what comes out is what went in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcrl.models.staging import BatchStaging, HostCopy

CPU = torch.device("cpu")


def make_parts(columns: tuple[int, ...], seed: int = 0) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {
        "obs": [rng.integers(0, 255, (4, count, 2, 3)).astype(np.uint8) for count in columns],
        "reward": [rng.normal(size=(3, count)).astype(np.float32) for count in columns],
        "valid": [rng.random((3, count)) < 0.5 for count in columns],
        "parameter_version": [rng.integers(0, 9, (3, count)) for count in columns],
    }


def check(parts: dict[str, list[np.ndarray]], staging: BatchStaging, device: torch.device) -> None:
    host, fields = staging.stage(parts)
    assert set(host) == set(fields) == set(parts)
    for name, arrays in parts.items():
        expected = np.concatenate(arrays, axis=1)
        assert fields[name].device == device
        for found in (host[name], fields[name].cpu().numpy()):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_on_the_cpu_a_single_part_is_the_batch_itself() -> None:
    parts = make_parts((5,))
    host, fields = BatchStaging(CPU).stage(parts)
    for name, (array,) in parts.items():
        assert host[name] is array
        assert fields[name].data_ptr() == array.ctypes.data


@pytest.mark.parametrize("in_place", [True, False])
def test_parts_are_joined_along_their_columns(in_place: bool) -> None:
    """Not in place: as on a device, but for the streams."""
    staging = BatchStaging(CPU)
    staging._in_place = in_place
    for seed, columns in enumerate([(2, 3), (5,), (0,), (1, 1, 1), (2, 3)]):
        check(make_parts(columns, seed), staging, CPU)


def test_memory_is_used_again_and_never_that_of_the_parts() -> None:
    staging = BatchStaging(CPU)
    staging._in_place = False
    first, second = make_parts((5,), 0), make_parts((2, 3), 1)
    before = staging.stage(first)[1]["reward"].data_ptr()
    fields = staging.stage(second)[1]
    assert fields["reward"].data_ptr() == before
    copy = fields["reward"].clone()
    for array in second["reward"]:
        array[...] = 0
    assert torch.equal(fields["reward"], copy)


def test_on_the_cpu_the_copy_of_a_vector_is_the_vector() -> None:
    vector, copy = torch.arange(4.0), HostCopy()
    copy.start(vector)
    assert copy.ready()
    copy.wait()
    assert copy.array.ctypes.data == vector.data_ptr()


@pytest.mark.gpu
def test_batches_arrive_on_a_gpu() -> None:
    device = torch.device("cuda", 0)
    staging = BatchStaging(device)
    for seed, columns in enumerate([(2, 3), (5,), (0,), (2, 3), (1, 1, 1)]):
        check(make_parts(columns, seed), staging, device)


@pytest.mark.gpu
def test_a_batch_is_not_overwritten_before_it_was_used() -> None:
    """The GPU is kept busy, so that it reads each batch long after the next one was staged."""
    device = torch.device("cuda", 0)
    staging = BatchStaging(device)
    work = torch.randn(4096, 4096, device=device)
    sums, expected = [], []
    for number in range(20):
        parts = {"reward": [np.full((1000, 1000), number, np.float32)]}
        fields = staging.stage(parts)[1]
        for _ in range(5):
            work = torch.tanh(work @ work)
        sums.append(fields["reward"].double().sum())
        expected.append(1e6 * number)
    assert [float(one) for one in sums] == expected


@pytest.mark.gpu
def test_a_vector_on_a_gpu_may_change_once_its_copy_has_begun() -> None:
    device = torch.device("cuda", 0)
    vector, copy = torch.zeros(10_000_019, device=device), HostCopy()
    for number in range(5):
        vector.fill_(number)
        copy.start(vector)
        vector.fill_(-1)
        copy.wait()
        assert copy.ready()
        assert (copy.array == number).all()
