"""Tests that need ranks live in tests/mpi and run under mpiexec, which tests/test_mpi.py starts."""

import hypothesis
import mpi4py

from hpcrl.launch.situation import look

# Tests run side by side with others on few cores: time is no property of the code.
hypothesis.settings.register_profile("hpcrl", deadline=None)
hypothesis.settings.load_profile("hpcrl")

collect_ignore = []

if not look().in_world:
    collect_ignore.append("mpi")
    # Unit tests import modules that speak MPI, for their pure functions; this process must stay free to fork.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
