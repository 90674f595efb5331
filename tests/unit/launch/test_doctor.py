import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.launch.doctor import file_system, findings

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
    usual |= {"shared_free_bytes": 1 << 33, "folder": "/home/me", "file_system": "nfs4", "locks": True}
    return usual | changes


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
    ],
)
def test_findings(seats, part):
    found = findings(seats)
    assert len(found) == (part is not None)
    assert part is None or part in found[0]


@pytest.mark.parametrize("ranks", [None, 3])
def test_the_command(ranks):
    launcher = [] if ranks is None else [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks)]
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "hpcrl", "doctor", "--json"],
        env=os.environ | {"PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1"},
        cwd=TOP,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    result = json.loads(done.stdout)
    assert result["launcher"] == ("none" if ranks is None else "hydra")
    assert "MPICH" in result["mpi_library"]
    assert [seat["rank"] for seat in result["seats"]] == list(range(ranks or 1))
    assert {seat["threads"] for seat in result["seats"]} == {1}
    assert ("share" in "".join(result["findings"])) == ((ranks or 1) > len(os.sched_getaffinity(0)))
    assert (len(result["starters"]) > 0) == (ranks is None)
