"""What a process may use where it runs: cores, GPUs, shared memory, the file system of its folder."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from hpcrl.launch.memory import memory_limit
from hpcrl.launch.situation import Situation


def look_around(situation: Situation) -> dict[str, Any]:
    """What this process may use. Local; JSON types only."""
    shared = os.statvfs("/dev/shm")
    folder = Path.cwd()
    cores = sorted(os.sched_getaffinity(0))
    per_task, on_node = (os.environ.get(f"SLURM_CPUS_{name}", "") for name in ("PER_TASK", "ON_NODE"))
    return {
        "rank": situation.rank,
        "node": socket.gethostname(),
        "cores": cores,
        "cores_before_mpi": len(cores),
        "cores_per_task": int(per_task) if per_task.isdigit() else None,
        "cores_of_node": int(on_node) if on_node.isdigit() else os.cpu_count() or len(cores),
        "gpus": _gpus(),
        "memory_bytes": memory_limit(),
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


def _has_locks(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _gpus() -> int:
    """NVIDIA GPUs that a process here sees; of those that it may use, where CUDA_VISIBLE_DEVICES says so."""
    there = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, len([one for one in visible.split(",") if one.strip()]))
