"""A Slurm cluster for all tests of a process (`pytest -n` starts several); a visible word where there can be none."""

import pytest

from slurm.testcluster.daemons import temporary
from tests.cluster.hosts import Unavailable
from tests.slurm.support import cancel_all


@pytest.fixture(scope="session")
def cluster():
    """Slurm on two emulated nodes."""
    try:
        context = temporary(2)
        slurm = context.__enter__()
    except Unavailable as error:
        pytest.skip(str(error))
    yield slurm
    context.__exit__(None, None, None)


@pytest.fixture
def idle(cluster):
    """Nothing that a test has submitted stays in the queue."""
    yield
    cancel_all(cluster)
