"""`hpcrl doctor`: what a run would find here. By itself on a login node, or as a rank of a world inside a job."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.comm.ranks import crowded_nodes
from hpcrl.config import ConfigError, ExitCode
from hpcrl.launch.launcher import find_launcher, mpi_library
from hpcrl.launch.situation import Situation, look, without_interface
from hpcrl.launch.supervise import leave
from hpcrl.launch.threads import threads_per_rank

if TYPE_CHECKING:
    from mpi4py import MPI

_LITTLE_SHARED_BYTES = 256 << 20
_SRUN_ANSWERS_S = 30.0


def doctor_command(*, as_json: bool) -> int:
    """Print what there is and what is wrong with it; BAD_CONFIGURATION where no run could start.

    Collective over the world, inside one; rank 0 prints.
    """
    situation = look()
    try:
        if situation.launcher == "srun without MPI":
            raise ConfigError(without_interface(situation))
        seats, library, starters = _live(situation) if situation.in_world else _dry()
    except ConfigError as error:
        if situation.rank == 0:
            sys.stderr.write(f"hpcrl: {error}\n")
        return leave(int(ExitCode.BAD_CONFIGURATION), all_ranks_leave=True)
    if situation.rank == 0:
        result = {
            "launcher": situation.launcher,
            "mpi_library": library,
            "starters": starters,
            "seats": seats,
            "findings": findings(seats),
        }
        if as_json:
            sys.stdout.write(json.dumps(result, indent=2) + "\n")
        else:
            Console(width=None if sys.stdout.isatty() else 120).print(render(result))
    return int(ExitCode.FINISHED)


def findings(seats: Sequence[dict[str, Any]]) -> list[str]:
    """What will make runs slow or fail, one sentence each. Pure."""
    found = [f"{sentence}: expect them to take turns" for sentence in crowded_nodes(seats)]
    for node, of_node in _by_node(seats).items():
        first = of_node[0]
        threads = sum(seat["threads"] for seat in of_node)
        cores = {core for seat in of_node for core in seat["cores"]}
        if threads > len(cores) >= len(of_node):
            found.append(
                f"{len(of_node)} ranks x {first['threads']} threads are more than the {len(cores)} cores on {node}; "
                "set OMP_NUM_THREADS lower, or ask for more cores per rank"
            )
        if first["shared_free_bytes"] < _LITTLE_SHARED_BYTES:
            found.append(
                f"{first['shared_free_bytes'] >> 20} MB are free in /dev/shm of {node}: ranks of a node may have to "
                "send messages; ask for more memory, or remove what is left there"
            )
        if not first["locks"]:
            found.append(
                f"{first['folder']} ({first['file_system']}) on {node} has no file locks: a second writer is not "
                "noticed, and HDF5 needs hdf5_locking = false in the site profile"
            )
    return found


def render(result: dict[str, Any]) -> RenderableType:
    """Lay out what the command has found as one screen for rich."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("MPI", result["mpi_library"])
    grid.add_row(
        "launcher",
        f"{result['launcher']}; a world of {len(result['seats'])} as promised"
        if result["launcher"] != "none"
        else "none here: this is one process, not a job",
    )
    for starter in result["starters"]:
        grid.add_row("could start", starter)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("node", "ranks", "cores", "threads each", "/dev/shm free", "folder", "file system"):
        table.add_column(name)
    for node, of_node in _by_node(result["seats"]).items():
        first = of_node[0]
        cores = {core for seat in of_node for core in seat["cores"]}
        ranks = ", ".join(str(seat["rank"]) for seat in of_node)
        free = f"{first['shared_free_bytes'] >> 20} of {first['shared_bytes'] >> 20} MB"
        where = (first["folder"], first["file_system"])
        table.add_row(node, ranks, str(len(cores)), str(first["threads"]), free, *where)
    sentences = [Text(f"- {sentence}", "yellow") for sentence in result["findings"]]
    return Group(
        grid, Text(), table, Text(), *(sentences or [Text("nothing stands against a run here", "green")])
    )


def look_around(situation: Situation) -> dict[str, Any]:
    """What this process may use. Local; JSON types only."""
    shared = os.statvfs("/dev/shm")
    folder = Path.cwd()
    return {
        "rank": situation.rank,
        "node": socket.gethostname(),
        "cores": sorted(os.sched_getaffinity(0)),
        "shared_bytes": shared.f_blocks * shared.f_frsize,
        "shared_free_bytes": shared.f_bavail * shared.f_frsize,
        "folder": str(folder),
        "file_system": file_system(folder, Path("/proc/self/mountinfo").read_text()),
        "locks": _has_locks(folder),
    }


def file_system(path: Path, mounts: str) -> str:
    """Type of the file system that holds `path`, from the text of /proc/self/mountinfo. Pure."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4]
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def _live(situation: Situation) -> tuple[list[dict[str, Any]], str, list[str]]:
    from hpcrl.launch.inside import measure_rank

    def gather(comm: MPI.Intracomm) -> tuple[list[dict[str, Any]], str]:
        from mpi4py import MPI

        mine = look_around(situation) | {"node": MPI.Get_processor_name(), "rank": comm.rank}
        seats: list[dict[str, Any]] = comm.allgather(mine)
        for seat in seats:
            ranks = sum(other["node"] == seat["node"] for other in seats)
            seat["threads"] = threads_per_rank(ranks)
        return seats, MPI.Get_library_version().splitlines()[0]

    seats, library = measure_rank(situation, gather)
    return seats, library, []


def _dry() -> tuple[list[dict[str, Any]], str, list[str]]:
    seat = look_around(Situation("none", 0, 1, 1))
    library = mpi_library()
    starters = [find_launcher(library)]
    if shutil.which("srun"):
        starters.append(_srun("pmix" if "Open MPI" in library else "pmi2"))
    return [seat | {"threads": threads_per_rank(1)}], library.splitlines()[0], starters


def _srun(plugin: str) -> str:
    """Whether Slurm has what the MPI library needs."""
    try:
        done = subprocess.run(
            ["srun", "--mpi=list"], check=True, capture_output=True, text=True, timeout=_SRUN_ANSWERS_S
        )
    except (subprocess.SubprocessError, OSError):
        return "srun is installed, but does not answer here"
    if plugin in (done.stdout + done.stderr).split():
        return f"srun --mpi={plugin}"
    return f"srun has no plugin {plugin}, which this MPI library needs"


def _has_locks(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _by_node(seats: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    nodes: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for seat in seats:
        nodes[seat["node"]].append(seat)
    return dict(nodes)
