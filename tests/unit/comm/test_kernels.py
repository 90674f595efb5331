import math

import numpy as np
import pytest

from hpcrl.comm import kernels
from hpcrl.comm.message_sum import tree_sum
from hpcrl.comm.node_sum import bucket_ranges, slice_of


def pieces(count, size, dtype):
    rng = np.random.default_rng([count, size])
    return [
        (rng.standard_normal(size) * 10.0 ** rng.integers(-6, 6, size)).astype(dtype) for _ in range(count)
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 23, 64, 70])
def test_the_order_is_that_of_the_tree(count, dtype):
    for size in (0, 1, 15, 4097, 40_000):
        sources = pieces(count, size, dtype)
        out = np.empty(size, dtype)
        kernels.sum_into(out, sources)
        assert out.tobytes() == tree_sum(sources).tobytes()


@pytest.mark.parametrize("count", [1, 2, 9])
def test_square_sums_beside_a_sum_and_alone_have_the_same_bits(count):
    for size in (0, 1, 127, 128, 129, 4096, 4097, 40_000):
        sources = pieces(count, size, np.float32)
        out, beside, alone = np.empty(size, np.float32), *np.full((2, kernels.num_blocks(size)), np.nan)
        kernels.sum_into(out, sources, beside)
        kernels.square_sums(out, alone)
        assert beside.tobytes() == alone.tobytes()
        exact = math.fsum((out.astype(np.float64) ** 2).tolist())
        assert kernels.total(beside) == pytest.approx(exact, rel=1e-13)


def test_the_out_array_may_be_a_source():
    sources = pieces(2, 5000, np.float32)
    expected = sources[0] + sources[1]
    kernels.sum_into(sources[0], sources)
    assert np.array_equal(sources[0], expected)


def test_squares_of_large_and_not_finite_numbers():
    vector = np.array([3e38, -3e38], np.float32)
    squares = np.zeros(1)
    kernels.square_sums(vector, squares)
    assert squares[0] == pytest.approx(2 * 9e76, rel=1e-6)
    for value in (np.inf, np.nan):
        kernels.square_sums(np.array([1, value], np.float32), squares)
        assert not np.isfinite(kernels.total(squares))


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 300_000, 5_000_000])
@pytest.mark.parametrize("bucket_bytes", [4096, 1 << 16, 4 << 20])
def test_buckets_and_slices_cover_everything_once(size, bucket_bytes):
    buckets = bucket_ranges(size, bucket_bytes)
    assert [bucket.stop for bucket in buckets] == [size, *(bucket.start for bucket in buckets)][
        : len(buckets)
    ]
    assert sum(len(bucket) for bucket in buckets) == size
    for bucket in buckets:
        slices = [slice_of(bucket, 3, rank) for rank in range(5)]
        assert sum(len(own) for own in slices) == len(bucket)
        assert [own.start for own in slices[1:]] == [own.stop for own in slices[:-1]]
        assert all(own.start % kernels.NORM_BLOCK == 0 for own in slices if own)
        assert not slices[3] and not slices[4]
