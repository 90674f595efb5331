"""The test cluster itself: a real Slurm, and nothing of it stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcrl.config import parse_minutes
from slurm.testcluster.daemons import CONTROLLER
from tests.cluster.command import UNAVAILABLE, USAGE
from tests.cluster.hosts import HEAD, STATE, find
from tests.cluster.test_hosts import processes_of, wait_until
from tests.unit.config.test_time_limit import FORMS

pytestmark = pytest.mark.slurm

TESTCLUSTER = Path(__file__).parents[2] / "slurm" / "testcluster" / "testcluster"


def testcluster(*arguments, **how):
    command = [sys.executable, str(TESTCLUSTER), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, **how)


testcluster.__test__ = False


def sleeps(folder):
    """Whether the job step `sleep 1000` is running."""
    return any(line.endswith(b"/sleep\x001000\x00") for line in processes_of(folder))


def test_tasks_run_on_two_hosts(cluster):
    assert cluster.nodes == ("node1", "node2")
    assert cluster.run("srun", "--nodes=2", "hostname").split() in (["node1", "node2"], ["node2", "node1"])
    assert cluster.run("hostname") == "head\n"
    memory = f"/dev/shm/{cluster.hosts.name}"
    assert cluster.run("srun", "--nodelist=node1", "--nodes=1", "touch", memory) == ""
    assert cluster.run("srun", "--nodelist=node1", "--nodes=1", "ls", memory).strip() == memory
    with pytest.raises(subprocess.CalledProcessError):
        cluster.run("srun", "--nodelist=node2", "--nodes=1", "ls", memory)


def test_controller_and_nodes_have_daemons_of_their_own(cluster):
    def programs(host):
        return set(cluster.run("ps", "-e", "-o", "comm=", host=host).split())

    assert {"munged", "slurmctld"} <= programs(CONTROLLER) and "slurmd" not in programs(CONTROLLER)
    for node in cluster.nodes:
        assert "slurmd" in programs(node) and "slurmctld" not in programs(node)


def test_states_of_jobs_without_accounting(cluster):
    job = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "exit 3").strip()
    deadline = time.monotonic() + 20
    question = ["sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", job]
    while "|FAILED|node" not in cluster.run(*question):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_up_on_down(cluster):
    name = f"test-{os.getpid()}"
    try:
        started = testcluster("up", "--nodes", "1", "--name", name)
        assert (started.returncode, started.stderr) == (0, "") and "idle node1" in started.stdout
        said = testcluster("on", "--name", name, HEAD, "--", "srun", "sh", "-c", "uname -n; exit 5")
        assert (said.returncode, said.stdout) == (5, "node1\n")
        sleeping = subprocess.Popen(
            [sys.executable, str(TESTCLUSTER), "on", "--name", name, HEAD, "--", "srun", "sleep", "1000"]
        )
        wait_until(lambda: sleeps(STATE / name))
    finally:
        ended = testcluster("down", "--name", name)
    assert ended.returncode == 0
    assert sleeping.wait(30) != 0
    assert not (STATE / name).exists() and processes_of(STATE / name) == []
    assert testcluster("down", "--name", name).returncode == USAGE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_runs_on_after_an_interrupted_session(cluster, number):
    """Daemons and jobs end with the process that asked for the cluster, however that one ends."""
    before = set(STATE.iterdir())
    process = subprocess.Popen(
        [sys.executable, str(TESTCLUSTER), "run", "--nodes", "1", "--", "srun", "sleep", "1000"]
    )
    try:
        wait_until(lambda: any(path.name.startswith(f"run-{process.pid}-") for path in STATE.iterdir()))
        (folder,) = [path for path in set(STATE.iterdir()) - before if f"run-{process.pid}-" in path.name]
        wait_until(lambda: sleeps(folder))
        first = find(folder.name).pid("node1")
        assert any(line.startswith(b"slurmctld") for line in processes_of(folder))
    finally:
        process.send_signal(number)
        process.wait(30)
    wait_until(lambda: processes_of(folder) == [] and not Path(f"/proc/{first}").exists())
    wait_until(lambda: str(folder) not in Path("/proc/mounts").read_text())


@pytest.mark.parametrize("text", FORMS)
def test_slurm_reads_time_limits_as_we_do(cluster, text):
    job = cluster.run("sbatch", "--parsable", "--hold", f"--time={text}", "--wrap", "true").strip()
    try:
        limit = cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%l").strip()
        assert parse_minutes(limit) == FORMS[text]
    finally:
        cluster.run("scancel", job)


def refused(*before, **how):
    """Exit code 69 and one sentence."""
    command = [*before, sys.executable, str(TESTCLUSTER), "run", "--", "true"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, **how)
    assert done.returncode == UNAVAILABLE
    (line,) = done.stderr.splitlines()
    return line


def test_where_slurm_is_not_installed(tmp_path):
    line = refused(env=os.environ | {"PATH": str(tmp_path)})
    assert line.startswith("testcluster: the Slurm test cluster needs `") and "slurm-wlm" in line


def test_root_of_a_container_that_may_not_make_namespaces(cluster):
    line = refused("setpriv", "--bounding-set", "-sys_admin,-net_admin")
    assert line.startswith("testcluster: emulated hosts need root")
