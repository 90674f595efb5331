"""The circular buffer, against one that is played through."""

import pytest

from hpcrl.data.reuse import Reuse

SIZES = [(1, 1), (1, 3), (2, 2), (3, 2), (2, 4)]


@pytest.mark.parametrize("first", [0, 24, 7])
@pytest.mark.parametrize(("batches", "uses"), SIZES)
def test_it_is_a_circular_buffer(batches, uses, first):
    reuse = Reuse(batches, uses, first)
    buffer, next_batch = [[None, uses]] * batches, reuse.first_batch
    for update in range(first, first + 50):
        place = reuse.place(update)
        assert reuse.batches_before(update) == next_batch
        batch, used = buffer[place]
        assert reuse.is_new(update) == (used == uses)
        if used == uses:
            assert reuse.first_use(next_batch) == update
            batch, used, next_batch = next_batch, 0, next_batch + 1
        buffer[place] = [batch, used + 1]
        assert reuse.use(update) == used + 1
        assert update - reuse.first_use(batch) == used * batches  # which is at most (uses - 1) * batches


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize(("batches", "uses"), SIZES)
def test_it_is_empty_after_the_batches_ahead(batches, uses, ahead):
    reuse = Reuse(batches, uses, 5)
    for update in range(5, 40):
        cut = reuse.empty_after(update, ahead)
        assert cut >= update and (cut - 5) % reuse.round == 0
        assert reuse.batches_before(cut) >= reuse.batches_before(update) + ahead
        earlier = cut - reuse.round
        assert earlier < update or reuse.batches_before(earlier) < reuse.batches_before(update) + ahead


def test_a_resumed_run_counts_on():
    assert Reuse(2, 3, 12).first_batch == Reuse(2, 3).batches_before(12) == 4
