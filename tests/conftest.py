"""Tests that need ranks live in tests/mpi and run under mpiexec, which tests/test_mpi.py starts."""

import hypothesis
import mpi4py
from xdist.scheduler import LoadScopeScheduling

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

ONE_PROCESS = ("unit", "conformance", "mutants")
"""Folders whose tests use about one core. The others start ranks that share all cores: they wait for one another."""


class RanksTogether(LoadScopeScheduling):
    """`pytest -n`: the tests that start ranks go to one worker, as one scope and first; the others one by one."""

    def _split_scope(self, nodeid):
        folder = nodeid.removeprefix("tests/").partition("/")[0]
        return nodeid if folder in ONE_PROCESS else "ranks"


def pytest_xdist_make_scheduler(config, log):
    """The hook of pytest-xdist."""
    return RanksTogether(config, log)
