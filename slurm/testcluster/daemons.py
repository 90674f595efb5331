"""munged, slurmctld and a slurmd per node on the hosts of tests/cluster: they come up with them and end with them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import string
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import hosts
from tests.cluster.hosts import HEAD, Cluster, ClusterError, Unavailable

CONTROLLER = "controller"
"""Host of munged and slurmctld. A host with process ids of its own, so that they end with it."""
CPUS_PER_NODE = 4
_HERE = Path(__file__).parent
_PACKAGES = "slurm-wlm slurm-wlm-basic-plugins munge libpmi2-0"
_LIMIT_S = 30.0


@dataclass(frozen=True)
class SlurmCluster:
    """Hosts that are up, with Slurm on them."""

    hosts: Cluster

    @property
    def nodes(self) -> tuple[str, ...]:
        """Hosts that run jobs."""
        return tuple(node for node in self.hosts.nodes if node != CONTROLLER)

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on a host, with this cluster's Slurm and this Python's programs."""
        path = os.pathsep.join(
            [str(Path(sys.executable).parent), str(_HERE / "bin"), os.environ.get("PATH", os.defpath)]
        )
        variables = [f"SLURM_CONF={self.hosts.folder / 'slurm.conf'}", f"PATH={_with_daemons(path)}"]
        return self.hosts.on(host, ["env", *variables, *command])

    def run(self, *command: str, host: str = HEAD) -> str:
        """Run `command` to its end, on the login node by default; what it printed. Raises CalledProcessError."""
        done = subprocess.run(
            self.on(host, command), check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        return done.stdout


@contextlib.contextmanager
def temporary(nodes: int, rate: str = "1gbit") -> Iterator[SlurmCluster]:
    """Slurm for the length of the block; it ends also when this process is killed. Raises Unavailable."""
    _need_programs()
    with hosts.temporary(nodes, rate, others=[CONTROLLER]) as cluster:
        yield _start(cluster)


def up(name: str, nodes: int, rate: str = "1gbit") -> SlurmCluster:
    """Slurm that stays until `hosts.end(name)`. Raises Unavailable, or ClusterError when the name is taken."""
    _need_programs()
    cluster = hosts.up(name, nodes, rate, others=[CONTROLLER])
    try:
        return _start(cluster)
    except BaseException:
        hosts.end(name)
        raise


def find(name: str) -> SlurmCluster:
    """The cluster of that name. Raises ClusterError when there is none with Slurm."""
    cluster = hosts.find(name)
    if CONTROLLER not in cluster.nodes:
        raise ClusterError(f"cluster {name!r} has no Slurm; `testcluster up --name NAME` starts one that has")
    return SlurmCluster(cluster)


def _need_programs() -> None:
    for program in ("munged", "slurmctld", "slurmd", "srun", "sbatch"):
        if shutil.which(program, path=_with_daemons(os.environ.get("PATH", os.defpath))) is None:
            raise Unavailable(
                f"the Slurm test cluster needs `{program}` on PATH (Debian packages {_PACKAGES})"
            )


def _with_daemons(path: str) -> str:
    return os.pathsep.join([path, "/usr/sbin", "/sbin"])


def _start(cluster: Cluster) -> SlurmCluster:
    slurm, folder = SlurmCluster(cluster), cluster.folder
    for name in ("state", *(f"spool.{node}" for node in slurm.nodes)):
        (folder / name).mkdir()
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # named, not used: none is looked for
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    values = {"folder": folder, "nodes": ",".join(slurm.nodes), "cpus": CPUS_PER_NODE}
    template = string.Template((_HERE / "slurm.conf.template").read_text())
    (folder / "slurm.conf").write_text(template.substitute(values))
    files = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
    try:
        # --force: the cluster's folder is closed to other users, of whom there are none here
        slurm.run("munged", "--force", f"--socket={folder}/munge.socket", *files, host=CONTROLLER)
        slurm.run("slurmctld", host=CONTROLLER)
        for node in slurm.nodes:
            slurm.run("slurmd", host=node)
    except subprocess.CalledProcessError as error:
        logs = [log.read_text() for log in sorted(folder.glob("slurm*.log"))]
        said = "".join([*logs, error.stderr]).strip().splitlines() or ["no message"]
        raise Unavailable(f"the Slurm test cluster needs `{error.cmd[-1]}` to start ({said[-1]})") from error
    _await_idle(slurm)
    return slurm


def _await_idle(slurm: SlurmCluster) -> None:
    deadline = time.monotonic() + _LIMIT_S
    states = ""
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.CalledProcessError):
            states = slurm.run("sinfo", "--noheader", "--Node", "--format=%N %T")
            if set(states.splitlines()) == {f"{node} idle" for node in slurm.nodes}:
                return
        time.sleep(0.1)
    raise Unavailable(
        f"the Slurm test cluster needs all nodes idle, after {_LIMIT_S:.0f} s they are: {states!r}"
    )
