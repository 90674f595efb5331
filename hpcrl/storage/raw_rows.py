"""The checksum of raw rows, for who writes them and who audits them."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from hpcrl.storage.schema import Rows

_COLUMNS = ("update", "collected_in", "actor", "grant", "parameter_version", "env_steps")


def row_checksums(rows: Rows) -> npt.NDArray[np.int64]:
    """CRC-32 [N] of each row of `trajectories`: of its columns as six little-endian int64, whatever else it has. Pure.

    Sums of them do not depend on which learner wrote which row, or in what order.
    """
    values = np.stack([rows[name].astype("<i8") for name in _COLUMNS], axis=1)
    return np.array([zlib.crc32(row.tobytes()) for row in values], np.int64)
