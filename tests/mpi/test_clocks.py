from time import perf_counter

from hpcrl.comm.clocks import common_time


def test_clocks_that_differ_tell_the_same_time(comm):
    """Each rank's is an hour ahead of the one before; rank 1 began first, ten minutes before the others."""
    skew_s = 3600.0 * comm.rank

    def clock():
        return perf_counter() + skew_s

    first = min(1, comm.size - 1)
    began = clock() - (600.0 if comm.rank == first else 0.0)
    shift_s = common_time(comm, began, clock)
    skews = comm.allgather((shift_s + skew_s, shift_s + began))
    assert all(abs(shift - skews[0][0]) < 60.0 for shift, _ in skews), "one time, whatever the clocks say"
    begins = [begin for _, begin in skews]
    assert begins[first] == 0.0
    assert all(540.0 < begin < 660.0 for rank, begin in enumerate(begins) if rank != first)
