"""A communicator for each test, and a report of each rank for the process that started the ranks."""

import os
from pathlib import Path

import pytest
from mpi4py import MPI

from tests.mpi.support import come_together


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """One JUnit file per rank, in the folder that tests/test_mpi.py names."""
    folder = os.environ.get("HPCRL_MPI_REPORTS")
    if folder:
        config.option.xmlpath = str(Path(folder) / f"rank{MPI.COMM_WORLD.rank}.xml")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Leave a note of a failure for the fixtures."""
    report = yield
    item.failed = getattr(item, "failed", False) or report.failed
    return report


@pytest.fixture
def comm(request):
    """All ranks, on a communicator of this test's own; nothing may be left on it."""
    comm = MPI.COMM_WORLD.Dup()
    yield comm
    if request.node.failed:
        return  # the others may be anywhere: no barrier, so that this rank's end takes them along
    come_together(comm)
    assert not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
    comm.Free()
