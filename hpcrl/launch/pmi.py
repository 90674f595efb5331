"""Slurm's PMI server (`srun --mpi=pmi2`) promises more than it takes.

It allows values of 1024 characters, but reads a whole line, with command, names and key, into a buffer of 1024. MPICH
cuts what it has to publish into values of the promised length; a longer line arrives broken, and MPI does not start.
MPICH 5 (ch4:ucx) publishes 4096 bytes from the address of a rank on, which is shorter, as digits that abbreviate
repeated bytes: what lies behind it on the heap decides how long the lines become, so that of equal starts some fail.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

LONGEST_VALUE = 896
"""Leaves 128 characters of a line to the rest. Even: MPICH halves it, and rounds in two ways."""
_PROMISE = re.compile(rb"(?<=\bvallen_max=)\d+")
_AT_ONCE = 65536


@contextlib.contextmanager
def honest_server(environ: Mapping[str, str]) -> Iterator[None]:
    """While MPI starts, have this process told of values no longer than the server takes.

    Does nothing elsewhere than in a step of Slurm with a PMI connection. A child passes on, unchanged but for that one
    answer, what the two say to each other; at the end the connection is the original one again and the child is gone.
    Local.
    """
    descriptor = environ.get("PMI_FD", "")
    of_hydra = "PMI_HOSTNAME" in environ
    if not descriptor.isdigit() or "SLURM_STEP_ID" not in environ or of_hydra:
        yield
        return
    place = int(descriptor)
    inherited = os.get_inheritable(place)
    server = os.dup(place)
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            _keep_only(0, 1, 2, there.fileno(), server)  # or it would never see the end of either connection
            _pass_on(there, socket.socket(fileno=server))
        finally:
            os._exit(0)
    there.close()
    os.dup2(here.fileno(), place, inherited)
    here.close()
    try:
        yield
    finally:
        os.dup2(server, place, inherited)
        os.close(server)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _keep_only(*descriptors: int) -> None:
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in descriptors:
            with contextlib.suppress(OSError):  # the listing itself
                os.close(int(entry.name))


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    """Until one of them is gone."""
    while True:
        ready, _, _ = select.select([client, server], [], [])
        for source, destination in ((client, server), (server, client)):
            if source not in ready:
                continue
            said = source.recv(_AT_ONCE)
            if not said:
                return
            destination.sendall(said if source is client else _PROMISE.sub(_honest, said))


def _honest(promise: re.Match[bytes]) -> bytes:
    return b"%d" % min(int(promise[0]), LONGEST_VALUE)
