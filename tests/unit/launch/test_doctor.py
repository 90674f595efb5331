import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.launch.findings import of_needs, of_seats, of_speeds
from hpcrl.launch.launcher import find_launcher
from hpcrl.launch.surroundings import file_system

TOP = Path(__file__).parents[3]
MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/root rw
22 21 0:20 / /proc rw - proc proc rw
30 21 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/me/scratch rw - lustre x rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/tmp/x", "ext4"),
        ("/home/me", "nfs4"),
        ("/home/me/scratch/y", "lustre"),
        ("/homes", "ext4"),
    ],
)
def test_file_systems(path, kind):
    assert file_system(Path(path), MOUNTS) == kind


def seat(**changes):
    usual = {"rank": 0, "node": "a", "cores": [0, 1, 2, 3], "threads": 1, "shared_bytes": 1 << 34}
    usual |= {
        "memory_bytes": 1 << 35,
        "shared_free_bytes": 1 << 33,
        "folder": "/home/me",
        "file_system": "nfs4",
        "locks": True,
    }
    usual |= {"cores_before_mpi": 4, "cores_per_task": None, "cores_of_node": 4, "gpus": 0} | changes
    if "cores" in changes:
        own = len(changes["cores"])
        usual |= {"cores_before_mpi": own, "cores_of_node": own} | changes
    return usual


@pytest.mark.parametrize(
    ("seats", "part"),
    [
        ([seat(), seat(node="b")], None),
        ([seat(threads=4)], None),
        ([seat(threads=2), seat(threads=2)], None),
        ([seat(cores=[0]), seat(cores=[0])], "2 ranks share 1 core on a"),
        ([seat(threads=4), seat(threads=4)], "2 ranks x 4 threads are more than the 4 cores on a"),
        ([seat(), seat(node="b", shared_free_bytes=64 << 20)], "64 MB are free in /dev/shm of b"),
        ([seat(locks=False)], "/home/me (nfs4) on a has no file locks"),
        ([seat(cores_before_mpi=8)], "rank 0 on a may use 4 of its 8 cores since MPI has started"),
        ([seat(cores_per_task=4)], None),
        ([seat(cores_per_task=8)], "rank 0 on a may use 4 cores, but SLURM_CPUS_PER_TASK=8: start with srun"),
        ([seat(cores_of_node=8)], "4 cores of the 8 on a may be used"),
        ([seat(cores=[0, 1], cores_of_node=4), seat(cores=[2, 3], cores_of_node=4)], None),
    ],
)
def test_findings(seats, part):
    found = of_seats(seats)
    assert len(found) == (part is not None)
    assert part is None or part in found[0]


def need(**changes):
    roles = {"replay": 1, "learner": 1, "actor": 1}
    replay = {"replay_bytes": 0, "replay_share": 0.5}
    usual = {"node": "a", "ranks": 3, "roles": roles, "shared_bytes": 1 << 20, "env_threads": 0}
    return usual | replay | changes


@pytest.mark.parametrize(
    ("asked", "there", "device", "part"),
    [
        (need(), [seat()], "cpu", None),
        (need(ranks=4), [seat()], "cpu", None),
        (need(ranks=5), [seat()], "cpu", "the recipe's 5 ranks would share 4 cores if all ran on a"),
        (need(ranks=5), [seat()] * 5, "cpu", None),  # said of the seats
        (need(env_threads=1), [seat()], "cpu", None),
        (need(env_threads=2), [seat()], "cpu", "3 ranks and 2 threads or processes of environments"),
        (need(shared_bytes=9), [seat(shared_free_bytes=10)], "cpu", None),
        (need(shared_bytes=10), [seat(shared_free_bytes=10)], "cpu", "of shared memory on a"),
        (need(replay_bytes=5), [seat(memory_bytes=10)], "cpu", None),
        (need(replay_bytes=6), [seat(memory_bytes=10)], "cpu", "more than replay.max_memory_share=0.5 of"),
        (need(), [seat()], "cuda", "a has no GPU for its learners: the run would be refused"),
        (need(), [seat()], "auto", "a has no GPU for its learners: they would compute on its CPU"),
        (need(roles={"actor": 3}), [seat()], "cuda", None),
        (need(), [seat(gpus=1)], "cuda", None),
        (need(roles={"learner": 2}), [seat(gpus=1)], "cuda", "2 learners share 1 GPU on a"),
    ],
)
def test_findings_about_a_recipe(asked, there, device, part):
    found = of_needs([asked], there, device)
    assert len(found) == (part is not None), found
    assert part is None or part in found[0]


@pytest.mark.parametrize(
    ("kind", "gbit", "ours", "library", "part"),
    [
        ("between nodes", 1.0, 1.0, 1.0, None),
        ("between nodes", 0.5, 1.0, 1.0, "a and b: 0.50 Gbit/s between them"),
        ("inside a node", 0.5, 1.0, 1.0, None),
        ("between nodes", 9.0, 1.4e-3, 1e-3, None),
        (
            "between nodes",
            9.0,
            3e-3,
            1e-3,
            "a sum of 4.0 MB takes 3.0 ms, the MPI library's Allreduce 1.0 ms",
        ),
    ],
)
def test_findings_about_speeds(kind, gbit, ours, library, part):
    link = {"kind": kind, "nodes": ["a", "b"], "latency_s": 1e-6, "bytes_per_s": gbit * 1e9 / 8}
    sums = {"bytes": 4 << 20, "hpcrl_s": ours, "allreduce_s": library}
    found = of_speeds({"links": [link], "sums": sums})
    assert len(found) == (part is not None), found
    assert part is None or part in found[0]
    assert of_speeds({}) == []


def doctor(*options, launcher=()):
    return subprocess.run(
        [*launcher, sys.executable, "-m", "hpcrl", "doctor", *options],
        env=os.environ | {"PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1"},
        cwd=TOP,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("ranks", [None, 3])
def test_the_command(ranks):
    launcher = [] if ranks is None else [find_launcher(), "-n", str(ranks)]
    ran = doctor("--json", "jobs/cartpole.py:impala", launcher=launcher)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["launcher"] == ("none" if ranks is None else "hydra")
    assert "MPICH" in result["mpi_library"]
    assert [seat["rank"] for seat in result["seats"]] == list(range(ranks or 1))
    assert {seat["threads"] for seat in result["seats"]} == {1}
    assert ("share" in "".join(result["findings"])) == (len(os.sched_getaffinity(0)) < 3)
    assert (len(result["starters"]) > 0) == (ranks is None)
    (recipe,) = result["recipe"]
    assert recipe["roles"] == {"replay": 1, "learner": 1, "actor": 1}
    assert recipe["shared_bytes"] > 100_000
    if ranks is None:
        assert result["speeds"] == {}
    else:
        (link,), sums = result["speeds"]["links"], result["speeds"]["sums"]
        assert link["kind"] == "inside a node" and link["latency_s"] > 0 and link["bytes_per_s"] > 0
        assert sums["hpcrl_s"] > 0 and sums["allreduce_s"] > 0


def test_a_recipe_that_does_not_fit():
    ran = doctor("--json", "--no-speed", "jobs/cartpole.py:impala", launcher=[find_launcher(), "-n", "2"])
    result = json.loads(ran.stdout)
    assert any("the run would be refused: 2 ranks were started" in one for one in result["findings"])
    assert result["recipe"] == [] and result["speeds"] == {}


def test_ranks_that_do_not_come_are_not_waited_for_without_end():
    ran = doctor("--limit", "1", launcher=[find_launcher(), "-n", "1", "sleep", "60", ":", "-n", "1"])
    assert ran.returncode == 3
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("hpcrl: ")]
    assert "doctor 1 (rank 1 on" in line and "not at its end after 1 s (--limit)" in line
    assert line.endswith("last progress: waiting for all ranks to start MPI")
    assert "Thread" not in ran.stderr and ran.stdout.strip() == ""
