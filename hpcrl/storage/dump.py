"""Arrays set aside for a person to look at: a batch whose gradient was not finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy.typing as npt


def dump_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write each array as one dataset of a new HDF5 file. Local."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
