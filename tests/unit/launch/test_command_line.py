"""`hpcrl` as a user starts it: what works without MPI, and what is refused before anything is made."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.config import RunConfig
from hpcrl.storage import TABLES, RunDirectory, RunLog

TOP = Path(__file__).parents[3]
MPIEXEC = Path(sys.executable).parent / "mpiexec"
LAUNCHER_VARIABLES = ("PMI_", "PMIX_", "OMPI_", "SLURM_", "HYDI_", "MPI_LOCAL")
CARTPOLE = str(TOP / "jobs/cartpole.py")


def environ(**changes):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    return clean | changes


def hpcrl(folder, *arguments, launcher=(), **variables):
    command = [*launcher, sys.executable, "-m", "hpcrl", *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def no_mpi(tmp_path):
    """Variables under which importing mpi4py fails."""
    (tmp_path / "blocked/mpi4py").mkdir(parents=True)
    (tmp_path / "blocked/mpi4py/__init__.py").write_text("raise ImportError('no MPI on a login node')\n")
    return {"PYTHONPATH": str(tmp_path / "blocked")}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def finished_run(tmp_path):
    values = {"name": "toy", "env": {"id": "x"}, "algorithm": {"name": "ppo"}}
    config = RunConfig.parse(values | {"storage": {"run_dir": str(tmp_path / "old")}})
    with RunDirectory.create(config) as run:
        log = RunLog(run.attempt_file, config_json=config.to_json(), provenance={}, attempt=1)
        log.append(
            "updates", TABLES["updates"].rows(2, update=[1, 2], env_steps=[64, 128], time_s=1.0, applied=True)
        )
        log.close()
        run.write_status("finished", exit_code=0, env_steps=128)
    return run.path


class TestWithoutMpi:
    """P08: a login node may have no MPI."""

    def test_the_fixture_blocks_it(self, folder, no_mpi):
        done = subprocess.run(
            [sys.executable, "-c", "import mpi4py"],
            env=environ(**no_mpi),
            cwd=folder,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1 and b"no MPI on a login node" in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (["--help"], "COMMAND"),
            (["--version"], "0."),
            (["run", "--help"], "exit codes"),
            (["config", "--help"], "--set"),
            (["describe", "--help"], "RUN"),
            (["watch", "--help"], "exit codes"),
            (["export", "--help"], "--tensorboard DIR"),
            (["diagnose", "--help"], "exit codes"),
            (["check", "--help"], "PACKAGE.MODULE:MAKE"),
            (["models", "--help"], "--rollback"),
            (["play", "--help"], "--video"),
            (["trace", "--help"], "perfetto"),
        ],
    )
    def test_help(self, folder, no_mpi, arguments, word):
        code, output, errors = hpcrl(folder, *arguments, **no_mpi)
        assert (code, errors) == (0, "") and word in output

    def test_config(self, folder, no_mpi):
        code, output, errors = hpcrl(
            folder, "config", f"{CARTPOLE}:impala", "--set", "seed=7", "--ranks", 5, **no_mpi
        )
        assert (code, errors) == (0, "")
        config = RunConfig.parse(json.loads(output))
        assert (config.seed, config.ranks.actors) == (7, 3)
        (folder / "resolved.json").write_text(output)
        assert hpcrl(folder, "config", "resolved.json", **no_mpi) == (0, output, "")

    def test_config_errors(self, folder, no_mpi):
        code, output, errors = hpcrl(
            folder, "config", f"{CARTPOLE}:impala", "--set", "env.num_env=3", **no_mpi
        )
        assert (code, output) == (2, "") and "did you mean num_envs" in errors

    def test_refusals_of_run(self, folder, no_mpi):
        code, output, errors = hpcrl(folder, "run", f"{CARTPOLE}:impala", "--set", "env.num_env=3", **no_mpi)
        assert (code, output) == (2, "") and "did you mean num_envs" in errors

    def test_run_says_that_mpi_is_missing(self, folder, no_mpi):
        code, output, errors = hpcrl(folder, "run", f"{CARTPOLE}:impala", **no_mpi)
        assert (code, output) == (2, "")
        assert errors == "hpcrl: mpi4py cannot be imported: ImportError: no MPI on a login node\n"
        assert list(folder.iterdir()) == []

    def test_describe(self, folder, no_mpi, finished_run):
        code, output, errors = hpcrl(folder, "describe", finished_run, **no_mpi)
        assert (code, errors) == (0, "") and "finished" in output and "128" in output
        code, output, _ = hpcrl(folder, "describe", finished_run, "--json", **no_mpi)
        assert code == 0 and json.loads(output)["updates"] == 2

    def test_watch_and_export(self, folder, no_mpi, finished_run):
        code, output, errors = hpcrl(folder, "watch", finished_run, **no_mpi)
        assert (code, errors) == (0, "") and output.startswith("finished")
        code, _, errors = hpcrl(folder, "export", finished_run, "--csv", "csv", **no_mpi)
        assert (code, errors) == (0, "")
        assert (folder / "csv/old/updates.csv").read_text().startswith("update,env_steps,")

    def test_diagnose(self, folder, no_mpi, finished_run):
        code, output, errors = hpcrl(folder, "diagnose", finished_run, "--json", **no_mpi)
        assert (code, errors) == (0, "") and json.loads(output)["updates"] == 2
        code, output, errors = hpcrl(folder, "diagnose", "nowhere", **no_mpi)
        assert (code, output) == (2, "") and "'nowhere' does not exist" in errors

    def test_a_run_without_a_trace(self, folder, no_mpi, finished_run):
        code, output, errors = hpcrl(folder, "trace", finished_run, "out.json", **no_mpi)
        assert (code, output) == (2, "") and "--set profile.trace=true" in errors
        assert list(folder.iterdir()) == []

    def test_describe_of_nothing(self, folder, no_mpi):
        code, output, errors = hpcrl(folder, "describe", "nowhere", **no_mpi)
        assert (code, output) == (2, "") and "'nowhere' does not exist" in errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["config", f"{CARTPOLE}:impala"],
        ["config", f"{CARTPOLE}:ppo", "--set", "ranks.workers=0"],
        ["config", f"{CARTPOLE}:nobody"],
        ["diagnose", "nowhere"],
        ["run", f"{CARTPOLE}:impala", "--set", "lag.max_lagg=1"],
        ["run", "nowhere.py:impala"],
        ["run", f"{CARTPOLE}:impala", "--ranks", "2"],
    ],
)
def test_nothing_heavy_is_loaded_to_check_a_configuration(folder, arguments):
    code = (
        "import sys\n"
        "from hpcrl.__main__ import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    print('code', end.code, file=sys.stderr)\n"
        "heavy = {'torch', 'mpi4py', 'gymnasium', 'envpool'}\n"
        "print('heavy', sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    expected = 0 if arguments == ["config", f"{CARTPOLE}:impala"] else 2
    assert done.stderr.splitlines()[-2:] == [f"code {expected}", "heavy []"]


@pytest.mark.parametrize("command", ["run", "doctor"])
@pytest.mark.parametrize("arguments", [["nowhere.py:impala"], [f"{CARTPOLE}:impala", "--bogus"]])
@pytest.mark.parametrize("number", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_while_loading_does_not_hide_the_exit_code(folder, number, arguments, command):
    """A task of srun is told to end when another has refused to start, and must refuse by itself."""
    code = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(name, path, target=None):\n"
        f"        if name == 'hpcrl.config': os.kill(os.getpid(), signal.{number})\n"
        "sys.meta_path.insert(0, Finder)\n"
        "from hpcrl.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command, *arguments],
        cwd=folder,
        env=environ(SLURM_STEP_ID="0", SLURM_PROCID="0", SLURM_JOB_ID="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


def refused(folder, errors, code, *parts):
    """Exit code 2, one message, nothing made."""
    assert code == 2, errors
    assert errors.count("hpcrl: ") == 1 and errors.startswith("hpcrl: ")
    assert "Traceback" not in errors
    for part in parts:
        assert part in errors
    assert list(folder.iterdir()) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "parts"),
        [
            (
                [f"{CARTPOLE}:impala", "--set", "env.num_env=3"],
                ["'env.num_env'", "num_envs", "Valid keys of env"],
            ),
            ([f"{CARTPOLE}:impala", "--set", "env.num_envs=0"], ["env.num_envs=0"]),
            ([f"{CARTPOLE}:impala", "--set", "algorithm.gamma=2"], ["algorithm.gamma=2"]),
            ([f"{CARTPOLE}:impalla"], ["no function 'impalla'", "impala, ppo"]),
            ([CARTPOLE.replace("cartpole", "cartpol") + ":impala"], ["does not exist", "cartpole.py"]),
            (["impala"], ["recipe 'impala' is not of a known form"]),
            ([f"{CARTPOLE}:impala", "--ranks", "2"], ["2 ranks are too few", "at least 3 ranks, or 1"]),
            ([f"{CARTPOLE}:impala", "--ranks", "0"], ["0 ranks are too few"]),
        ],
    )
    def test_by_hand(self, folder, arguments, parts):
        code, output, errors = hpcrl(folder, "run", *arguments)
        assert output == ""
        refused(folder, errors, code, *parts)

    @pytest.mark.parametrize(
        "variables",
        [
            {"PMI_RANK": "0", "PMI_SIZE": "2"},
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            {
                "SLURM_JOB_ID": "1",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_PROCID": "0",
                "PMIX_RANK": "0",
            },
        ],
    )
    def test_two_ranks_for_three_roles(self, folder, variables):
        code, output, errors = hpcrl(folder, "run", f"{CARTPOLE}:impala", **variables)
        assert output == ""
        refused(
            folder, errors, code, "2 ranks were started", "ranks.actors=1", "start 3 ranks", "or 1 to run"
        )

    def test_two_ranks_for_three_roles_under_the_launcher(self, folder):
        code, _, errors = hpcrl(folder, "run", f"{CARTPOLE}:impala", launcher=[str(MPIEXEC), "-n", "2"])
        refused(folder, errors, code, "2 ranks were started", "start 3 ranks")

    def test_wrong_key_under_the_launcher(self, folder):
        arguments = ["run", f"{CARTPOLE}:impala", "--set", "env.num_env=3"]
        code, _, errors = hpcrl(folder, *arguments, launcher=[str(MPIEXEC), "-n", "3"])
        refused(folder, errors, code, "'env.num_env'")

    def test_unknown_environment_is_found_out_by_the_ranks(self, folder):
        settings = ["env.engine=toy", "env.id=banditt"]
        code, _, errors = hpcrl(
            folder, "run", f"{CARTPOLE}:impala", *(part for one in settings for part in ("--set", one))
        )
        refused(folder, errors, code, "env.id='banditt'", "bandit")

    def test_used_run_directory(self, folder, finished_run):
        before = snapshot(finished_run)
        for launcher in ([], [str(MPIEXEC), "-n", "3"]):
            arguments = ["run", f"{CARTPOLE}:impala", "--set", f"storage.run_dir={finished_run}"]
            code, _, errors = hpcrl(folder, *arguments, launcher=launcher)
            refused(folder, errors, code, "already holds a run", str(finished_run), "storage.run_dir")
        assert snapshot(finished_run) == before

    @pytest.mark.parametrize("rank", [0, 1])
    def test_tasks_without_an_mpi_launcher(self, folder, rank):
        """P07: N copies of rank 0 of 1 would overwrite each other."""
        variables = {"SLURM_NTASKS": "2", "SLURM_PROCID": str(rank)}
        code, output, errors = hpcrl(folder, "run", f"{CARTPOLE}:ppo", **variables)
        assert (code, output) == (2, "")
        if rank == 0:
            refused(folder, errors, code, "2 tasks without an MPI interface", "--mpi=pmi2", "mpiexec")
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_launcher_that_the_library_does_not_know(self, folder, rank):
        """Each process is alone in its MPI world although two were started."""
        variables = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(rank)}
        arguments = ["run", f"{CARTPOLE}:ppo", "--set", "ranks.workers=2"]
        code, output, errors = hpcrl(folder, *arguments, **variables)
        assert output == ""
        errors = errors.splitlines(keepends=True)[-1]  # mpi4py warns before
        refused(folder, errors, code, "(openmpi) started 2 processes", "sees a world of 1", "do not match")


def snapshot(path):
    return {
        str(one): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file() and one.name != "lock"
    }


TINY = [
    part
    for one in (
        "env.engine=toy",
        "env.id=bandit",
        "env.num_envs=2",
        "budget.env_steps=200",
        "evaluation.episodes=2",
    )
    for part in ("--set", one)
]


def test_one_rank_runs_every_role_in_one_process(folder):
    code, output, errors = hpcrl(folder, "run", f"{CARTPOLE}:impala", *TINY, "--ranks", 1)
    assert code == 0, errors
    assert "1 ranks" in output.splitlines()[0]
    run = folder / output.splitlines()[-1]
    summary = json.loads(hpcrl(folder, "describe", run, "--json")[1])
    assert summary["status"] == "finished" and summary["env_steps"] >= 200
    assert sorted(rank["role"] for rank in summary["ranks"]) == ["actor", "learner", "replay"]


def test_the_launcher_is_found_and_used(folder):
    code, output, errors = hpcrl(folder, "run", f"{CARTPOLE}:impala", *TINY)
    assert code == 0, errors
    assert "3 ranks" in output.splitlines()[0]
    assert [path.name for path in folder.iterdir()] == ["runs"]
