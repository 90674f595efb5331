"""Tests that need ranks live in tests/mpi and run under mpiexec, which tests/test_mpi.py starts."""

from pathlib import Path

import hypothesis
import mpi4py
import pytest

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

HERE = Path(__file__).parent
ONE_PROCESS = ("unit", "conformance", "mutants")
"""Folders whose tests use about one core. The others start ranks that share all cores: they wait for one another."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """For `pytest -n`: the tests that start ranks go to one worker."""
    for item in items:
        if item.path.relative_to(HERE).parts[0] not in ONE_PROCESS:
            item.add_marker(pytest.mark.xdist_group("ranks"))
