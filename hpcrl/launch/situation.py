"""Where this process runs: started by an MPI launcher, by Slurm's srun, or by hand. Looks at the environment only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Situation:
    """What the launcher promised this process."""

    launcher: str
    """hydra, openmpi, srun, srun without MPI, or none"""
    rank: int
    size: int
    local_size: int
    """Ranks on this node, as far as the launcher says; else `size`."""

    @property
    def in_world(self) -> bool:
        """Whether a launcher started this process as one of a world."""
        return self.launcher != "none"


def look(environ: Mapping[str, str] | None = None) -> Situation:
    """Read the launcher's variables. Pure in `environ`."""
    env = os.environ if environ is None else environ

    def number(*names: str, default: int = 0) -> int:
        for name in names:
            if env.get(name, "").isdigit():
                return int(env[name])
        return default

    slurm_size = number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", default=1)
    under_srun = "SLURM_STEP_ID" in env or ("SLURM_PROCID" in env and "SLURM_JOB_ID" not in env)
    if "OMPI_COMM_WORLD_SIZE" in env:
        size = number("OMPI_COMM_WORLD_SIZE")
        return Situation(
            "openmpi",
            number("OMPI_COMM_WORLD_RANK"),
            size,
            number("OMPI_COMM_WORLD_LOCAL_SIZE", default=size),
        )
    if "PMI_SIZE" in env or "PMI_RANK" in env or "PMIX_RANK" in env:
        size = number("PMI_SIZE", default=slurm_size)
        launcher = "srun" if under_srun and "PMI_HOSTNAME" not in env else "hydra"
        local = number("MPI_LOCALNRANKS", default=size)
        return Situation(launcher, number("PMI_RANK", "PMIX_RANK", "SLURM_PROCID"), size, local)
    if under_srun and slurm_size > 1:
        return Situation("srun without MPI", number("SLURM_PROCID"), slurm_size, slurm_size)
    return Situation("none", 0, 1, 1)


def mismatch(situation: Situation, size: int, library: str) -> str | None:
    """The sentence that refuses N copies of "rank 0 of 1", or None when launcher and library agree. Pure."""
    if situation.size == size:
        return None
    library = library.split(",", maxsplit=1)[0].splitlines()[0]
    return (
        f"the launcher ({situation.launcher}) started {situation.size} processes, but the MPI library ({library}) "
        f"sees a world of {size}: launcher and library do not match. Check `which mpiexec`, the MPI that mpi4py "
        "loads (python -c 'from mpi4py import MPI; print(MPI.Get_library_version())'), and under srun its option "
        "--mpi (pmi2 for MPICH, pmix for Open MPI)"
    )
