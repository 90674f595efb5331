"""Where this process runs: started by an MPI launcher, by Slurm's srun, or by hand. Looks at the environment only."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
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
    nodes: int = 1
    """Nodes of the scheduler's allocation; 1 where there is none."""
    pmix_only: bool = False
    """The launcher speaks PMIx, and no other interface of MPI processes."""
    survives_deaths: bool = False
    """The launcher was told to let the other ranks go on when one dies (mpiexec --with-ft ulfm)."""

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
    nodes = number("SLURM_JOB_NUM_NODES", "SLURM_NNODES", default=1)
    under_srun = "SLURM_STEP_ID" in env or ("SLURM_PROCID" in env and "SLURM_JOB_ID" not in env)
    if "OMPI_COMM_WORLD_SIZE" in env:
        size = number("OMPI_COMM_WORLD_SIZE")
        return Situation(
            "openmpi",
            number("OMPI_COMM_WORLD_RANK"),
            size,
            number("OMPI_COMM_WORLD_LOCAL_SIZE", default=size),
            nodes,
            survives_deaths=env.get("OMPI_MCA_mpi_ft_enable", "0").lower() in ("1", "true", "yes"),
        )
    if "PMI_SIZE" in env or "PMI_RANK" in env or "PMIX_RANK" in env:
        size = number("PMI_SIZE", default=slurm_size)
        launcher = "srun" if under_srun and "PMI_HOSTNAME" not in env else "hydra"
        local = number("MPI_LOCALNRANKS", default=size)
        rank = number("PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
        return Situation(launcher, rank, size, local, nodes, pmix_only="PMI_RANK" not in env)
    if under_srun and slurm_size > 1:
        return Situation("srun without MPI", number("SLURM_PROCID"), slurm_size, slurm_size, nodes)
    return Situation("none", 0, 1, 1)


def without_interface(situation: Situation) -> str:
    """The sentence that refuses tasks of srun that cannot find each other. Pure."""
    return (
        f"srun started {situation.size} tasks without an MPI interface: each would be rank 0 of 1 and overwrite "
        "the others. Start with srun --mpi=pmi2 (MPICH) or --mpi=pmix (Open MPI), or use mpiexec; "
        "`srun --mpi=list` shows what this Slurm has"
    )


def without_fault_tolerance(situation: Situation) -> str:
    """The sentence that refuses faults.actor_death=continue where a launcher would end the job. Pure."""
    return (
        f"faults.actor_death=continue, but the launcher ({situation.launcher}) ends all ranks when one dies: start "
        "them with `mpiexec --with-ft ulfm` of Open MPI 5 or newer, also inside a Slurm job (srun cannot do it), or by "
        "`hpcrl run` alone, which does that; or use faults.actor_death=end"
    )


def no_interface(situation: Situation, library: str) -> str | None:
    """The sentence that refuses a start at which this MPI library would abort, or None. Pure; before MPI starts."""
    if not situation.pmix_only or "MPICH" not in library or "pmix" in library.lower():
        return None
    return (
        f"the launcher ({situation.launcher}) started {situation.size} processes by PMIx, which this MPI library "
        f"({_first_line(library)}) does not speak: each would be rank 0 of 1. Start with srun --mpi=pmi2 (MPICH); "
        "--mpi=pmix is for Open MPI; `srun --mpi=list` shows what this Slurm has"
    )


def crowded(situation: Situation, size: int, hosts: Collection[str], wanted: int | None) -> str | None:
    """The sentence that refuses ranks that are not on all nodes of the job, or None. Pure.

    `hosts`: names of those with ranks; `wanted`: `ranks.nodes`.
    """
    if wanted is not None and len(hosts) != wanted:
        return (
            f"ranks.nodes={wanted}, but the {size} ranks are on {len(hosts)}: {', '.join(sorted(hosts))}; "
            "change ranks.nodes, or how the ranks are started"
        )
    if wanted is not None or len(hosts) >= min(situation.nodes, size):
        return None
    where = f"all on one host, {next(iter(hosts))}" if len(hosts) == 1 else f"on {len(hosts)} of them only"
    return (
        f"the job has {situation.nodes} nodes, but its {size} ranks are {where}: the others would stay idle. Start "
        "the ranks with srun, or with an mpiexec that knows Slurm's allocation; or ask for fewer nodes; or, if this is "
        f"meant, set ranks.nodes={len(hosts)}"
    )


def mismatch(situation: Situation, size: int, library: str) -> str | None:
    """The sentence that refuses N copies of "rank 0 of 1", or None when launcher and library agree. Pure."""
    if situation.size == size:
        return None
    return (
        f"the launcher ({situation.launcher}) started {situation.size} processes, but the MPI library "
        f"({_first_line(library)}) "
        f"sees a world of {size}: launcher and library do not match. Check `which mpiexec`, the MPI that mpi4py "
        "loads (python -c 'from mpi4py import MPI; print(MPI.Get_library_version())'), and under srun its option "
        "--mpi (pmi2 for MPICH, pmix for Open MPI)"
    )


def _first_line(library: str) -> str:
    return library.split(",", maxsplit=1)[0].splitlines()[0]
