"""Starts MPI programs on emulated hosts, by MPICH's launcher."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.hosts import DEVICE, HEAD, Cluster, ClusterError

_REMOTE_SHELL = Path(__file__).with_name("remote_shell")
_NETWORK = {
    # MPICH's other network module (OFI) takes the loopback device, which leads nowhere else.
    "MPIR_CVAR_CH4_NETMOD": "ucx",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": DEVICE,
}


def command(cluster: Cluster, ranks_per_node: Sequence[int], program: Sequence[str]) -> list[str]:
    """The command line that runs `program` on so many ranks of node1, node2, ...; ranks are numbered node by node.

    The started process is mpiexec on the head: its signals, its exit code. This Python's programs come first on PATH.
    Raises ClusterError when there are fewer nodes, or no mpiexec.
    """
    if len(ranks_per_node) > len(cluster.nodes):
        raise ClusterError(
            f"{len(ranks_per_node)} nodes wanted, cluster {cluster.name} has {len(cluster.nodes)}"
        )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    mpiexec = shutil.which("mpiexec", path=path)
    if mpiexec is None:
        raise ClusterError("no mpiexec beside this Python or on PATH; `pip install mpich` brings one")
    hosts = ",".join(
        f"{node}:{ranks}" for node, ranks in zip(cluster.nodes, ranks_per_node, strict=False) if ranks > 0
    )
    variables = [f"{name}={value}" for name, value in (_NETWORK | {"PATH": path}).items()]
    launch = [mpiexec, "-launcher", "ssh", "-launcher-exec", str(_REMOTE_SHELL), "-hosts", hosts]
    return cluster.on(HEAD, ["env", *variables, *launch, "-n", str(sum(ranks_per_node)), *program])


def node_of_each_rank(cluster: Cluster, ranks_per_node: Sequence[int]) -> list[str]:
    """Host name of rank 0, 1, ..."""
    return [node for node, ranks in zip(cluster.nodes, ranks_per_node, strict=False) for _ in range(ranks)]
