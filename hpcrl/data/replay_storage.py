"""Memory of the replay rings: RAM, or files of a local disk that vanish with the process."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.data.replay_layout import Arrays, array_bytes


def allocate(arrays: Arrays, folder: str | None) -> dict[str, npt.NDArray[Any]]:
    """The arrays, all 0: in RAM, or in one file in `folder`, which is made. Local.

    The file has no name any more when this returns, so its space is free again as soon as the arrays are, however the
    process ends. Raises ValueError naming replay.memory_map where the folder or the space in it is not to be had.
    """
    if folder is None:
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in arrays.items()}
    nbytes = array_bytes(arrays) + 64 * len(arrays)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(prefix=f"hpcrl-replay-{os.getpid()}-", dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            memory = mmap.mmap(file.fileno(), nbytes)
    except OSError as error:
        raise ValueError(
            f"replay.memory_map={folder!r}: {nbytes / 1e6:,.0f} MB for a replay memory are not to be had there "
            f"({error.strerror}); use another folder, or a smaller replay.capacity"
        ) from error
    views, offset = {}, 0
    for name, (shape, dtype) in arrays.items():
        views[name] = view = np.ndarray(shape, dtype, buffer=memory, offset=offset)
        offset += -(-view.nbytes // 64) * 64
    return views
