"""What figures were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on."""
    return {
        "cpu": _cpu_model(),
        "num_cores": len(os.sched_getaffinity(0)),
        "load_average_1min": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {
            name: importlib.metadata.version(name)
            for name in ("torch", "numpy", "envpool", "gymnasium", "mpi4py", "mpich")
        },
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
