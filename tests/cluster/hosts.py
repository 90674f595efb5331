"""Hosts of an emulated cluster: each a few namespaces of this machine, on a cable of a given rate.

A host has its own name, /dev/shm, process ids, System V IPC and network; the rest of the file system is shared, as a
cluster shares /home. The host "head" is login node and switch in one: its cables lead to node1, node2, ..., and it
keeps this machine's process ids, so that the nodes can be entered from it. This machine's own network is not touched:
no device, address or name of a cluster exists outside its hosts, so clusters cannot collide.

Links and mounts vanish with the last process of a host, and the processes of a node die with its first one. That one
ends with its standard input: a pipe whose other end is held by the process that asked for the cluster, so a cluster
does not outlive that process, however it dies. Hosts that shall stay hold the other end themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

STATE = Path("/run/hpcrl-cluster")
"""One folder per cluster: process ids of its hosts, their /etc/hosts, what went wrong when they started."""
VARIABLE = "HPCRL_CLUSTER"
"""Environment variable of every process on a cluster: its folder."""
HEAD = "head"
DEVICE = "cable0"
"""Network device of every node."""
_NETWORK = "10.77.0"
_INIT = Path(__file__).with_name("host_init")
_LIMIT_S = 20.0


class Unavailable(RuntimeError):
    """This machine does not let us have emulated hosts; the message is one sentence that says why."""


class ClusterError(RuntimeError):
    """A request that does not fit what is there."""


@dataclass(frozen=True)
class Cluster:
    """Hosts that are up."""

    folder: Path
    nodes: tuple[str, ...]
    rate: str
    delay: str

    @property
    def name(self) -> str:
        return self.folder.name

    def pid(self, host: str) -> int:
        """First process of a host, as this machine counts. Raises ClusterError for an unknown host."""
        if host not in (HEAD, *self.nodes):
            raise ClusterError(f"no host {host!r} in cluster {self.name}: {HEAD} {' '.join(self.nodes)}")
        return int((self.folder / f"{host}.pid").read_text())

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on a host, in this working directory.

        On the head the started process becomes `command`; on a node `command` is its child, in that node's numbering.
        """
        own = ["--net", "--uts", "--ipc", "--mount"] if host == HEAD else ["--all"]
        enter = ["nsenter", "--target", str(self.pid(host)), *own, "--"]
        return [*enter, "env", f"--chdir={Path.cwd()}", f"{VARIABLE}={self.folder}", *command]

    def run(self, host: str, *command: str) -> str:
        """Run `command` on a host to its end; what it printed. Raises CalledProcessError."""
        done = subprocess.run(self.on(host, command), check=True, capture_output=True, text=True)
        return done.stdout


@contextlib.contextmanager
def temporary(
    nodes: int, rate: str = "1gbit", delay: str = "none", others: Sequence[str] = ()
) -> Iterator[Cluster]:
    """A cluster for the length of the block; it ends also when this process is killed. Raises Unavailable.

    `others`: names of further hosts, which are as the nodes and follow them in `Cluster.nodes`.
    """
    theirs, ours = os.pipe()
    started: list[subprocess.Popen[bytes]] = []
    try:
        name = f"run-{os.getpid()}-{secrets.token_hex(3)}"
        hosts = _names(nodes, others)
        yield _start(name, hosts, rate, delay, standard_input=theirs, keep_open=(), started=started)
    finally:
        os.close(ours)
        os.close(theirs)
        _end(STATE / name)
        for process in started:
            process.wait()


def up(
    name: str, nodes: int, rate: str = "1gbit", delay: str = "none", others: Sequence[str] = ()
) -> Cluster:
    """A cluster that stays until `end`. Raises Unavailable, or ClusterError when the name is taken."""
    theirs, ours = os.pipe()
    try:
        hosts = _names(nodes, others)
        return _start(name, hosts, rate, delay, standard_input=theirs, keep_open=(ours,), started=[])
    finally:
        os.close(ours)
        os.close(theirs)


def end(name: str) -> None:
    """End the hosts of a cluster and whatever runs on them. Raises ClusterError when there is none."""
    if not (STATE / _checked(name)).is_dir():
        raise ClusterError(f"no cluster {name!r} is up")
    _end(STATE / name)


def find(name: str) -> Cluster:
    """The cluster of that name. Raises ClusterError when there is none."""
    for cluster in clusters():
        if cluster.name == name:
            return cluster
    raise ClusterError(f"no cluster {name!r} is up; `cluster up --name {name}` starts it")


def clusters() -> list[Cluster]:
    """All clusters that are up, after removing what killed ones have left."""
    if not STATE.exists():
        return []
    with _registry():
        found = []
        for path in sorted(STATE.glob("*/cluster.json")):
            with contextlib.suppress(FileNotFoundError):  # its owner is just removing it
                values = json.loads(path.read_text())
                found.append(Cluster(path.parent, tuple(values["nodes"]), values["rate"], values["delay"]))
        return found


def _names(count: int, others: Sequence[str]) -> tuple[str, ...]:
    return (*(f"node{index + 1}" for index in range(count)), *others)


def _start(
    name: str,
    nodes: tuple[str, ...],
    rate: str,
    delay: str,
    *,
    standard_input: int,
    keep_open: tuple[int, ...],
    started: list[subprocess.Popen[bytes]],
) -> Cluster:
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            raise Unavailable(f"emulated hosts need `{tool}` on PATH (Debian packages iproute2, util-linux)")
    cluster = Cluster(STATE / _checked(name), nodes, rate, delay)
    addresses = [f"{_NETWORK}.254 {HEAD}", *(f"{_NETWORK}.{i + 1} {node}" for i, node in enumerate(nodes))]
    with _claim(cluster.folder) as lock:
        (cluster.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *addresses, ""]))
        for index, host in enumerate((HEAD, *nodes)):
            own_pids = [] if host == HEAD else ["--pid", "--fork", "--kill-child"]
            with (cluster.folder / f"{host}.log").open("wb") as log:
                init = [str(_INIT), host, str(cluster.folder), str(index)]
                process = subprocess.Popen(
                    ["unshare", "--net", "--uts", "--ipc", "--mount", *own_pids, *init],
                    stdin=standard_input,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env=os.environ | {VARIABLE: str(cluster.folder)},
                    pass_fds=(*keep_open, lock.fileno()),
                    start_new_session=True,
                )
            started.append(process)
        for host, process in zip((HEAD, *nodes), started, strict=True):
            _await(cluster, host, process)
        _wire(cluster)
        values = {"nodes": nodes, "rate": rate, "delay": delay}
        (cluster.folder / "cluster").write_text(json.dumps(values))
        (cluster.folder / "cluster").rename(cluster.folder / "cluster.json")  # others may be reading it
        return cluster


def _await(cluster: Cluster, host: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not (cluster.folder / f"{host}.pid").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            said = (cluster.folder / f"{host}.log").read_text().strip().splitlines() or ["no first process"]
            raise Unavailable(f"emulated hosts need root and the right to make namespaces ({said[0]})")
        time.sleep(0.002)


def _wire(cluster: Cluster) -> None:
    """Every node gets a cable to the head's switch, shaped at both ends: each end limits what it sends."""

    def do(host: str, command: str) -> None:
        try:
            cluster.run(host, *command.split())
        except subprocess.CalledProcessError as error:
            said = (error.stderr.strip().splitlines() or ["no message"])[0]
            raise Unavailable(f"emulated hosts need `{command}` to work ({said})") from error

    do(HEAD, "ip link add name switch type bridge")
    do(HEAD, f"ip address add {_NETWORK}.254/24 dev switch")
    do(HEAD, "ip link set switch up")
    for index, node in enumerate(cluster.nodes):
        do(HEAD, f"ip link add name {node} type veth peer name {DEVICE} netns {cluster.pid(node)}")
        do(HEAD, f"ip link set {node} master switch up")
        do(node, f"ip address add {_NETWORK}.{index + 1}/24 dev {DEVICE}")
        do(node, f"ip link set {DEVICE} up")
        for host, device in ((HEAD, node), (node, DEVICE)):
            parent = "root"
            if cluster.rate != "none":
                limit = f"tbf rate {cluster.rate} burst 128kb latency 50ms"
                do(host, f"tc qdisc add dev {device} root handle 1: {limit}")
                parent = "parent 1:1"
            if cluster.delay != "none":
                do(
                    host,
                    f"tc qdisc add dev {device} {parent} handle 2: netem delay {cluster.delay} limit 10000",
                )


@contextlib.contextmanager
def _claim(folder: Path) -> Iterator[IO[str]]:
    """A new folder, with a lock that is held as long as somebody has the yielded file open.

    That is this process for the length of the block, and the hosts that inherit it. Ends them when the block fails.
    """
    with contextlib.ExitStack() as stack:
        with _registry():
            try:
                folder.mkdir()
            except FileExistsError:
                raise ClusterError(f"a cluster {folder.name!r} is up already; take another name") from None
            lock = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield lock
        except BaseException:
            _end(folder)
            raise


def _checked(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise ClusterError(f"a cluster cannot be named {name!r}: lower-case letters, digits and - only")
    return name


@contextlib.contextmanager
def _registry() -> Iterator[None]:
    """Nobody else makes, lists or removes folders during the block; folders that nobody holds are removed first."""
    try:
        STATE.mkdir(mode=0o700, exist_ok=True)
        file = (STATE / "registry.lock").open("w")
    except OSError as error:
        raise Unavailable(f"emulated hosts need root ({error})") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for path in STATE.glob("*/lock"):
            # "r+": one that its owner is just removing is not made again
            with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end(path.parent)
        yield


def _end(folder: Path) -> None:
    """Kill what runs on a cluster and remove its folder."""
    deadline = time.monotonic() + _LIMIT_S
    network = None
    with contextlib.suppress(FileNotFoundError):
        network = _network_of((folder / f"{HEAD}.pid").read_text().strip())
    while members := _members(folder, network):
        if time.monotonic() > deadline:
            raise ClusterError(f"cannot end processes {members} of cluster {folder.name}")
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    shutil.rmtree(folder, ignore_errors=True)


def _members(folder: Path, network: str | None) -> list[int]:
    """Living processes that say by their environment, or by the head's network, that they are on the cluster."""
    mark = f"{VARIABLE}={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            marked = mark in (process / "environ").read_bytes().split(b"\0")
            if marked or (network is not None and _network_of(process.name) == network):
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def _network_of(pid: str) -> str | None:
    """The network namespace of a process, None when it is gone or in ours."""
    with contextlib.suppress(OSError):
        namespace = str(Path(f"/proc/{pid}/ns/net").readlink())
        return namespace if namespace != str(Path("/proc/self/ns/net").readlink()) else None
    return None
