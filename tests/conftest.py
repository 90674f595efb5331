"""Tests that need ranks live in tests/mpi and run under mpiexec, which tests/test_mpi.py starts."""

import hypothesis
import mpi4py
from xdist.scheduler import LoadScopeScheduling

from hpcrl.launch.situation import look

# Tests run side by side with others on few cores: time is no property of the code.
hypothesis.settings.register_profile(
    "hpcrl", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("hpcrl")

collect_ignore = []

if not look().in_world:
    collect_ignore.append("mpi")
    # Unit tests import modules that speak MPI, for their pure functions; this process must stay free to fork.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False


class FilesOfRanks(LoadScopeScheduling):
    """`pytest -n`: tests that start ranks wait for one another inside a file; all others go where there is time.

    So do those of which the most is waiting for Slurm.
    """

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        apart = file.startswith(
            (
                "tests/unit/",
                "tests/conformance/",
                "tests/faults/",
                "tests/mutants/",
                "tests/slurm/",
                "tests/test_mpi.py",
                "tests/learning/test_solved.py",
            )
        )
        return nodeid if apart else file


def pytest_xdist_make_scheduler(config, log):
    """The hook of pytest-xdist."""
    return FilesOfRanks(config, log)
