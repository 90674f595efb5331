"""A rank that starts MPI after its heap was in use: every small free block lies before bytes without pattern."""

import ctypes
import os
import sys

from hpcrl.launch.inside import measure_rank
from hpcrl.launch.situation import look

HOLES, BEHIND = 40, 4096


def use_heap():
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    holes = []
    for size in range(24, 1024, 16):
        for _ in range(HOLES):
            holes.append(library.malloc(size))
            ctypes.memmove(library.malloc(BEHIND), os.urandom(BEHIND), BEHIND)
    for hole in holes:
        library.free(hole)


use_heap()
sys.stdout.write(f"{measure_rank(look(), lambda comm: comm.allreduce(1))}\n")
