import pytest

from hpcrl.config import ConfigError, RunConfig
from hpcrl.launch.situation import Situation, crowded, look, mismatch, no_interface
from hpcrl.launch.start import refuse_early

SLURM_JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
# the batch step: sbatch runs the script itself with these
BATCH = SLURM_JOB | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
# tasks of a step
STEP = SLURM_JOB | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_FD": "9", "PMI_HOSTNAME": "11", "MPI_LOCALNRANKS": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
}

CASES = {
    "by hand": ({}, ("none", 0, 1, 1)),
    "mpiexec of MPICH": (HYDRA, ("hydra", 2, 3, 2)),
    "mpiexec of MPICH, rank 0": (HYDRA | {"PMI_RANK": "0"}, ("hydra", 0, 3, 2)),
    "mpiexec of MPICH, one rank": (HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1"}, ("hydra", 0, 1, 2)),
    "mpiexec of MPICH without local size": ({"PMI_RANK": "2", "PMI_SIZE": "3"}, ("hydra", 2, 3, 3)),
    "mpiexec of MPICH in the batch step": (BATCH | HYDRA, ("hydra", 2, 3, 2)),
    "mpiexec of MPICH, proxies started by srun": (STEP | HYDRA, ("hydra", 2, 3, 2)),
    "mpiexec of MPICH in an allocation of one task": (
        BATCH | HYDRA | {"SLURM_NTASKS": "1"},
        ("hydra", 2, 3, 2),
    ),
    "mpiexec of Open MPI": (OPENMPI, ("openmpi", 1, 3, 2)),
    "mpiexec of Open MPI in the batch step": (BATCH | OPENMPI, ("openmpi", 1, 3, 2)),
    "srun --mpi=pmi2": (STEP | {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9"}, ("srun", 3, 4, 4)),
    "srun --mpi=pmix": (STEP | {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.7.0"}, ("srun", 3, 4, 4)),
    "srun --mpi=pmix, a part of the allocation": (
        STEP | {"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "2"},
        ("srun", 1, 2, 2),
    ),
    "srun without MPI": (STEP, ("srun without MPI", 3, 4, 4)),
    "srun without MPI, one task": (
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        ("none", 0, 1, 1),
    ),
    "batch step of sbatch": (BATCH, ("none", 0, 1, 1)),
    "shell in an allocation": (SLURM_JOB, ("none", 0, 1, 1)),
    "two processes by hand that claim to be tasks": (
        {"SLURM_NTASKS": "2", "SLURM_PROCID": "1"},
        ("srun without MPI", 1, 2, 2),
    ),
    "empty variables": ({"PMI_RANK": "", "PMI_SIZE": "", "SLURM_NTASKS": ""}, ("hydra", 0, 1, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_situations(case):
    environ, expected = CASES[case]
    situation = look(environ)
    found = (situation.launcher, situation.rank, situation.size, situation.local_size)
    assert found == expected
    assert situation.in_world == (expected[0] != "none")


@pytest.mark.parametrize(
    ("environ", "nodes"),
    [
        ({}, 1),
        (HYDRA, 1),
        (BATCH | HYDRA, 2),
        (BATCH | OPENMPI, 2),
        (STEP, 2),
        (STEP | {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_JOB_NUM_NODES": "3"}, 3),
    ],
)
def test_nodes_of_the_allocation(environ, nodes):
    assert look(environ).nodes == nodes


def test_the_real_environment_is_looked_at(monkeypatch):
    for name in HYDRA:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "5")
    assert look().size == 5


LIBRARY = "MPICH Version:      5.0.2\nMPICH Release date: Wed Jan  1\n"


@pytest.mark.parametrize(("promised", "found"), [(1, 1), (3, 3)])
def test_launcher_and_library_agree(promised, found):
    assert mismatch(Situation("hydra", 0, promised, promised), found, LIBRARY) is None


@pytest.mark.parametrize(("promised", "found"), [(3, 1), (1, 3), (4, 3)])
def test_launcher_and_library_disagree(promised, found):
    text = mismatch(Situation("openmpi", 0, promised, promised), found, LIBRARY)
    assert f"(openmpi) started {promised} processes" in text
    assert f"sees a world of {found}" in text
    assert "(MPICH Version:      5.0.2)" in text
    assert "which mpiexec" in text and "--mpi" in text and "pmi2" in text and "pmix" in text
    assert "\n" not in text


def test_the_name_of_open_mpi_is_cut_at_the_comma():
    text = mismatch(Situation("hydra", 0, 2, 2), 1, "Open MPI v5.0.11, package: Open MPI root@x, ident: 5")
    assert "(Open MPI v5.0.11)" in text


@pytest.mark.parametrize(
    ("environ", "library", "refused"),
    [
        (STEP | {"PMIX_RANK": "3"}, LIBRARY, True),
        (STEP | {"PMIX_RANK": "3"}, LIBRARY + "MPICH configure: --with-pmix=/usr\n", False),
        (STEP | {"PMIX_RANK": "3"}, "Open MPI v5.0.11, package", False),
        (STEP | {"PMIX_RANK": "3", "PMI_RANK": "3", "PMI_SIZE": "4"}, LIBRARY, False),
        (STEP | {"PMI_RANK": "3", "PMI_SIZE": "4"}, LIBRARY, False),
        ({}, LIBRARY, False),
    ],
)
def test_a_library_without_pmix(environ, library, refused):
    text = no_interface(look(environ), library)
    assert (text is not None) == refused
    if text is not None:
        assert "4 processes by PMIx" in text and "--mpi=pmi2 (MPICH)" in text and "\n" not in text


@pytest.mark.parametrize(
    ("nodes", "size", "hosts", "wanted", "parts"),
    [
        (1, 3, ["a"], None, None),
        (2, 3, ["a", "b"], None, None),
        (2, 1, ["a"], None, None),
        (4, 3, ["a", "b", "c"], None, None),
        (2, 3, ["a"], None, ["2 nodes", "3 ranks", "all on one host, a", "ranks.nodes=1"]),
        (4, 8, ["a", "b", "c"], None, ["4 nodes", "on 3 of them only", "ranks.nodes=3"]),
        (2, 3, ["a"], 1, None),
        (2, 3, ["a", "b"], 2, None),
        (1, 3, ["a"], 2, ["ranks.nodes=2", "on 1: a"]),
        (2, 3, ["b", "a"], 1, ["ranks.nodes=1", "on 2: a, b"]),
    ],
)
def test_ranks_are_on_the_nodes_of_the_job(nodes, size, hosts, wanted, parts):
    text = crowded(Situation("srun", 0, size, size, nodes), size, hosts, wanted)
    assert (text is None) == (parts is None)
    for part in parts or ():
        assert part in text


@pytest.mark.parametrize(
    ("environ", "survives"),
    [
        (OPENMPI, False),
        (OPENMPI | {"OMPI_MCA_mpi_ft_enable": "0"}, False),
        (OPENMPI | {"OMPI_MCA_mpi_ft_enable": "1"}, True),
        (HYDRA | {"OMPI_MCA_mpi_ft_enable": "1"}, False),
        (STEP | {"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "3", "OMPI_MCA_mpi_ft_enable": "1"}, False),
    ],
)
def test_only_a_launcher_that_lets_others_go_on_may_run_without_an_actor(environ, survives):
    values = {"name": "x", "env": {"id": "x"}, "algorithm": {"name": "impala"}}
    config = RunConfig.parse(values | {"faults": {"actor_death": "continue"}})
    situation = look(environ)
    assert situation.rank != 0  # whose look at the run directory is left out
    if survives:
        refuse_early(config, situation)
    else:
        with pytest.raises(ConfigError, match="mpiexec --with-ft ulfm") as refusal:
            refuse_early(config, situation)
        assert f"({situation.launcher})" in str(refusal.value)
