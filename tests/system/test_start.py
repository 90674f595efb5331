"""Starting: under a launcher that does not match, beside the user's own modules, with process environments."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hpcrl.launch.launcher import find_launcher
from tests.system.support import FOREVER, TOY, assert_gone, run, start

CARTPOLE = TOY | {"env": {"id": "CartPole-v1", "engine": "gymnasium", "num_envs": 2}}


def test_two_tasks_of_srun_without_mpi_are_refused(tmp_path):
    """Each would believe to be rank 0 of 1 and overwrite the other's files."""
    (tmp_path / "job.json").write_text(__import__("json").dumps(TOY))
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("PMI", "SLURM", "HYDI"))
    }
    command = [sys.executable, "-m", "hpcrl", "run", "job.json"]
    tasks = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environ | {"SLURM_NTASKS": "2", "SLURM_PROCID": str(task)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in range(2)
    ]
    answers = [task.communicate(timeout=60) for task in tasks]
    assert [task.returncode for task in tasks] == [2, 2]
    (out, error), (_, other_error) = answers
    assert "srun started 2 tasks without an MPI interface" in error and "--mpi=pmi2" in error
    assert (out, other_error) == ("", "")  # one task speaks for all
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.json"]


def test_a_launcher_of_another_mpi_library_is_refused(tmp_path):
    """It promises two ranks, but the library, which does not know its protocol, sees a world of one."""
    environ = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    refused = run(tmp_path, "scheme=synchronous", "ranks.workers=2", environ=environ)
    assert refused.code == 2
    (line,) = refused.named_failures()
    assert "(openmpi) started 2 processes" in line and "sees a world of 1" in line
    assert refused.run_dir is None


def test_modules_in_the_working_directory_are_found_by_every_rank(tmp_path):
    """Recipe and environment; through the installed command, which does not look there by itself."""
    (tmp_path / "mine.py").write_text(
        "import gymnasium\n"
        "from mpi4py import MPI\n"
        "from hpcrl.config import RunConfig\n"
        "def make(**kwargs):\n"
        # else MPICH spins inside blocking calls, milliseconds each where ranks share cores
        "    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE\n"
        "    return gymnasium.make('CartPole-v1', **kwargs)\n"
        "def recipe():\n"
        f"    return RunConfig.parse({TOY | {'env': {'id': 'mine:make', 'engine': 'custom'}}!r})\n"
    )
    command = [find_launcher(), "-n", "3", str(Path(sys.executable).parent / "hpcrl"), "run", "mine:recipe"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "runs/toy-0-001"


def test_environments_in_processes_of_their_own(tmp_path):
    """They are spawned after MPI has started, and are gone with their rank even when it is killed."""
    settings = ("env.vectorization=async", "storage.flush_interval_s=0.1")
    with start(tmp_path, FOREVER, *settings, recipe=CARTPOLE) as running:
        running.until_updates(2)
        before = len(running.processes())
        os.kill(running.pids()["actor 0"], signal.SIGKILL)
        killed = time.monotonic()
        ended = running.wait(10)
        assert_gone(running, within_s=10 - (time.monotonic() - killed))
    assert before >= 9 + 2  # launcher, proxy, supervisor and rank of each role, and the two environments
    assert ended.code == 3
    again = run(tmp_path / "again", *settings, recipe=CARTPOLE)
    assert again.code == 0, again.stderr
    assert set(again.table("episodes")["env_index"]) == {0, 1}


def test_a_network_that_does_not_fit_is_refused_before_anything_is_made(tmp_path):
    ended = run(tmp_path, "env.engine=gymnasium", "env.id=CartPole-v1", "model.torso=nature_cnn")
    assert ended.code == 2, ended.stderr
    assert ended.run_dir is None
    assert len(ended.named_failures()) == 1 and "model.torso=nature_cnn does not fit" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_clone_named_hpcrl_below_the_working_directory_does_not_shadow_the_package(tmp_path):
    (tmp_path / "hpcrl").mkdir()
    (tmp_path / "job.json").write_text(json.dumps(TOY))
    command = [str(Path(sys.executable).parent / "hpcrl"), "run", "job.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


def test_warnings_of_the_network_module_do_not_get_into_json():
    """UCX writes them to stdout, unless it is told otherwise."""
    command = [find_launcher(), "-n", "2", sys.executable, "-m", "hpcrl", "doctor", "--json"]
    environ = os.environ | {"UCX_LOG_LEVEL": "info"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["seats"]) == 2
    assert "UCX" in done.stderr
