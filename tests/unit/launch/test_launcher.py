import pytest

from hpcrl.config import ConfigError
from hpcrl.launch.launcher import choose

HYDRA = "HYDRA build details:\n    Version: 5.0.2"
OPEN_MPI = "mpiexec (Open MPI) 5.0.11"
MPICH_LIBRARY = "MPICH Version:      5.0.2\nMPICH ABI: 17:0:5"
OPEN_MPI_LIBRARY = "Open MPI v5.0.11, package: Open MPI"


@pytest.mark.parametrize(
    ("library", "expected"), [(MPICH_LIBRARY, "/venv/mpiexec"), (OPEN_MPI_LIBRARY, "/site/mpiexec")]
)
def test_the_launcher_of_the_library_is_chosen(library: str, expected: str) -> None:
    assert choose(library, {"/venv/mpiexec": HYDRA, "/site/mpiexec": OPEN_MPI}) == expected


def test_a_launcher_of_another_library_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"Open MPI v5.*/venv/mpiexec: HYDRA"):
        choose(OPEN_MPI_LIBRARY, {"/venv/mpiexec": HYDRA})


def test_none_at_all() -> None:
    with pytest.raises(ConfigError, match="pip install mpich"):
        choose(MPICH_LIBRARY, {})
