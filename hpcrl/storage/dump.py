"""Arrays set aside for a person to look at: a batch whose gradient was not finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hpcrl.storage.writing import new_file


def dump_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write each array as one dataset of a new HDF5 file. Local. Raises OSError where the disk refuses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
