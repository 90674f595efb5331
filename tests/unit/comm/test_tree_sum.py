import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.comm.message_sum import tree_sum


def pieces(count, size=257, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-6, 6, (count, size))
    return list((rng.standard_normal((count, size)) * scale).astype(dtype))


@given(st.integers(1, 70), st.sampled_from((np.float32, np.float64)), st.integers(0, 1000))
def test_close_to_the_exact_sum(count, dtype, seed):
    given_pieces = pieces(count, dtype=dtype, seed=seed)
    exact = np.sum(np.array(given_pieces, np.longdouble), axis=0)
    bound = (
        np.sum(np.abs(given_pieces), axis=0, dtype=np.longdouble)
        * np.finfo(dtype).eps
        * np.ceil(np.log2(count + 1))
    )
    result = tree_sum(given_pieces)
    assert result.dtype == dtype
    assert (np.abs(result - exact) <= bound).all()


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("node_size", [1, 2, 4, 8, 16, 32])
def test_power_of_two_groups_do_not_depend_on_the_layout(count, node_size):
    all_pieces = pieces(count)
    whole = tree_sum(all_pieces)
    nodes = [tree_sum(all_pieces[start : start + node_size]) for start in range(0, count, node_size)]
    assert np.array_equal(tree_sum(nodes).view(np.int32), whole.view(np.int32))


def test_other_groups_do():
    """Without this the test above would hold for any order of addition."""
    all_pieces = pieces(6)
    by_three = tree_sum([tree_sum(all_pieces[:3]), tree_sum(all_pieces[3:])])
    assert not np.array_equal(by_three, tree_sum(all_pieces))


def test_one_piece_is_itself():
    (piece,) = pieces(1)
    assert tree_sum([piece]) is piece


def test_inputs_are_left_alone():
    all_pieces = pieces(5)
    before = [piece.copy() for piece in all_pieces]
    tree_sum(all_pieces)
    assert all(np.array_equal(left, right) for left, right in zip(all_pieces, before, strict=True))


def test_empty_shards():
    assert tree_sum([np.zeros(0, np.float32)] * 3).shape == (0,)


def test_large_terms_cancel_in_the_written_order():
    values = [np.array([value], np.float32) for value in (1.0, 1e8, -1e8, 1.0)]
    assert tree_sum(values)[0] == np.float32(np.float32(1 + 1e8) + np.float32(-1e8 + 1))
