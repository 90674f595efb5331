"""What a host of the emulated cluster is, and that nothing of it stays."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.command import UNAVAILABLE, USAGE
from tests.cluster.hosts import DEVICE, HEAD, STATE, clusters, find, temporary

CLUSTER = Path(__file__).with_name("cluster")
FOREVER = "import time; print('ready', flush=True); time.sleep(1000)"


pytestmark = pytest.mark.usefixtures("permitted")


def cluster_command(*arguments, **how):
    command = [sys.executable, str(CLUSTER), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, **how)


def processes_of(folder):
    """Living processes that say they are on a cluster."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"HPCRL_CLUSTER={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes())
    return found


def wait_until(ready):
    deadline = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_host_has_its_own_name_memory_processes_and_network():
    with temporary(2) as cluster:
        assert cluster.nodes == ("node1", "node2")
        for host in (HEAD, *cluster.nodes):
            assert cluster.run(host, "uname", "-n").strip() == host
        mark = f"/dev/shm/{cluster.name}"
        cluster.run("node1", "touch", mark)
        assert cluster.run("node1", "ls", mark).strip() == mark
        assert not Path(mark).exists()
        with pytest.raises(subprocess.CalledProcessError):
            cluster.run("node2", "ls", mark)
        namespaces = {
            kind: {cluster.run(host, "readlink", f"/proc/self/ns/{kind}") for host in cluster.nodes}
            | {str(Path(f"/proc/self/ns/{kind}").readlink()) + "\n"}
            for kind in ("net", "uts", "ipc", "mnt", "pid")
        }
        assert {kind: len(names) for kind, names in namespaces.items()} == dict.fromkeys(namespaces, 3)
        assert cluster.run("node1", "ls", "/sys/class/net").split() == [DEVICE, "lo"]


def test_the_file_system_is_shared(tmp_path):
    with temporary(2) as cluster:
        cluster.run("node1", "cp", "/etc/hosts", str(tmp_path / "hosts"))
        assert cluster.run("node2", "cat", str(tmp_path / "hosts")) == (tmp_path / "hosts").read_text()
        assert cluster.run("node2", "pwd").strip() == str(Path.cwd())


def test_on_the_head_the_started_process_is_the_command():
    """So signals to a launcher there reach it."""
    with temporary(1) as cluster:
        process = subprocess.Popen(cluster.on(HEAD, ["sleep", "1000"]))
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT


def test_orphans_leave_no_zombies():
    with temporary(1) as cluster:
        cluster.run("node1", "sh", "-c", "(sleep 0.2 > /dev/null 2>&1 &)")
        wait_until(
            lambda: cluster.run("node1", "ps", "-e", "-o", "comm=").split() == ["host_init", "cat", "ps"]
        )


def test_process_ids_of_hosts_differ():
    with temporary(3) as cluster:
        numbers = [int(cluster.run(node, "sh", "-c", "echo $$")) for node in cluster.nodes]
        assert [number // 3000 for number in numbers] == [1, 2, 3]


@pytest.mark.parametrize(
    ("rate", "limits"), [("1gbit", [125_000_000]), ("100mbit", [12_500_000]), ("none", [])]
)
def test_cables_are_shaped_in_both_directions(rate, limits):
    with temporary(2, rate) as cluster:
        for host, device in [(node, DEVICE) for node in cluster.nodes] + [
            (HEAD, node) for node in cluster.nodes
        ]:
            shape = json.loads(cluster.run(host, "tc", "-json", "qdisc", "show", "dev", device))
            assert [one["options"]["rate"] for one in shape if one["kind"] == "tbf"] == limits  # bytes/s


def test_delay_or_a_word_that_the_kernel_cannot():
    done = cluster_command("run", "--delay", "2ms", "--", "true")
    if done.returncode == UNAVAILABLE:
        assert "netem delay 2ms" in done.stderr
        return
    with temporary(1, delay="2ms") as cluster:
        assert "delay 2ms" in cluster.run("node1", "tc", "qdisc", "show", "dev", DEVICE)


def test_clusters_do_not_meet():
    with temporary(2) as one, temporary(2) as other:
        assert one.name != other.name
        assert {one, other} <= set(clusters())
        one.run("node1", "touch", f"/dev/shm/{one.name}")
        assert cluster_command("on", "--name", other.name, "node1", "--", "ls", "/dev/shm").stdout == ""


def test_up_on_list_down():
    name = f"test-{os.getpid()}"
    try:
        assert cluster_command("up", "--nodes", "2", "--name", name).returncode == 0
        again = cluster_command("up", "--name", name)
        assert (again.returncode, "is up already" in again.stderr) == (USAGE, True)
        assert f"{name}: node1 node2, rate 1gbit\n" in cluster_command("list").stdout
        said = cluster_command("on", "--name", name, "node2", "--", "sh", "-c", "uname -n; exit 5")
        assert (said.returncode, said.stdout) == (5, "node2\n")
        left = [
            subprocess.Popen(find(name).on("node1", ["sleep", "1000"])),
            subprocess.Popen(find(name).on(HEAD, ["env", "-i", "sleep", "1000"])),
        ]
    finally:
        ended = cluster_command("down", "--name", name)
    assert ended.returncode == 0
    assert [process.wait(30) for process in left] == [-signal.SIGKILL] * 2
    assert not (STATE / name).exists() and processes_of(STATE / name) == []
    assert cluster_command("down", "--name", name).returncode == USAGE


@pytest.fixture
def running(tmp_path):
    """`cluster run` of a program that never ends: its process and the cluster's folder."""
    before = set(STATE.iterdir())
    with (tmp_path / "out.txt").open("w") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                str(CLUSTER),
                "run",
                "--ranks-per-node",
                "1",
                "--",
                sys.executable,
                "-c",
                FOREVER,
            ],
            stdout=out,
            stderr=out,
        )
    try:
        wait_until(lambda: (tmp_path / "out.txt").read_text().count("ready") == 2)
        (folder,) = [path for path in set(STATE.iterdir()) - before if f"run-{process.pid}-" in path.name]
        yield process, folder
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_nothing_stays_after_a_signal(running, number):
    process, folder = running
    assert len(processes_of(folder)) > 4
    process.send_signal(number)
    assert process.wait(30) != 0
    assert not folder.exists() and processes_of(folder) == []


def test_nothing_runs_on_after_a_kill_and_the_next_cluster_clears_up(running):
    process, folder = running
    process.kill()
    process.wait()
    wait_until(lambda: processes_of(folder) == [])
    with temporary(1):
        assert not folder.exists()


def test_a_node_that_is_killed_takes_its_processes_along(running):
    process, folder = running
    os.kill(find(folder.name).pid("node2"), signal.SIGKILL)
    assert process.wait(30) != 0
    assert not folder.exists() and processes_of(folder) == []
