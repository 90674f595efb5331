import pytest

from hpcrl.config import ConfigError
from hpcrl.launch.launcher import choose, fault_tolerance

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


def test_a_library_with_ulfm_gets_its_option() -> None:
    options, _ = fault_tolerance(OPEN_MPI_LIBRARY)
    assert options == ["--with-ft", "ulfm"]


@pytest.mark.parametrize("library", [MPICH_LIBRARY, "Open MPI v4.1.4, package: Debian OpenMPI"])
def test_one_without_is_refused_by_name(library: str) -> None:
    with pytest.raises(ConfigError, match=r"actor_death=continue needs .*Open MPI 5") as refusal:
        fault_tolerance(library)
    assert library.splitlines()[0] in str(refusal.value)
    assert "faults.actor_death=end" in str(refusal.value)
