"""Whether hosts can be emulated here, and a visible word where they cannot."""

import pytest

from tests.cluster.hosts import Unavailable, temporary


@pytest.fixture(scope="session")
def unavailable():
    """Why there can be no emulated hosts here; None where there can."""
    try:
        with temporary(1):
            return None
    except Unavailable as error:
        return str(error)


@pytest.fixture
def permitted(unavailable):
    """Skip, with the reason in pytest's summary, where hosts cannot be emulated."""
    if unavailable is not None:
        pytest.skip(unavailable)
