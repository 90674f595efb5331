import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.comm.stream import Tag, parts


@given(st.integers(0, 20_000), st.integers(1, 3000))
def test_parts_cover_every_byte_once_and_keep_the_limit(nbytes, limit):
    pieces = parts(nbytes, limit)
    assert [byte for piece in pieces for byte in range(nbytes)[piece]] == list(range(nbytes))
    assert all(piece.stop - piece.start <= limit for piece in pieces)
    assert len(pieces) == max(-(-nbytes // limit), 1)
    assert len({piece.stop - piece.start for piece in pieces[:-1]} - {limit}) == 0


@pytest.mark.parametrize(
    ("nbytes", "sizes"),
    [
        (0, [0]),
        (1, [1]),
        (1023, [1023]),
        (1024, [1024]),
        (1025, [1024, 1]),
        (10 * 1024 + 7, [1024] * 10 + [7]),
    ],
)
def test_sizes_around_the_limit(nbytes, sizes):
    assert [piece.stop - piece.start for piece in parts(nbytes, 1024)] == sizes


def test_more_than_two_gibibytes_at_the_default_limit():
    pieces = parts(2**33 + 1, 1 << 30)
    assert len(pieces) == 9
    assert (pieces[-1].start, pieces[-1].stop) == (2**33, 2**33 + 1)


def test_tags_leave_room_for_the_end_note():
    used = [tag + offset for tag in Tag for offset in (0, 1)]
    assert len(set(used)) == len(used)
