"""Large arrays of a checkpoint as blocks of bytes, of which the unchanged ones are not written again.

A block is a file named by the SHA-256 of its bytes, in the folder `PART.blocks` of a set. One that the set before holds
already is linked: each set is whole for itself, and removing one leaves the blocks of the others. So a replay memory of
which 1 % is new since the last save costs a few per cent of its bytes. The price: sets share such a block on the
disk, and a byte that goes bad in it damages each of them.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_BYTES = 1 << 22
"""Small enough that scattered changes stay cheap, large enough for few files: 256 per GB."""
LARGE_BYTES = 2 * BLOCK_BYTES
"""Arrays of at least so many bytes are stored in blocks."""
_DIGEST_BYTES = 32

Digests = npt.NDArray[np.uint8]
"""SHA-256 of each block, (blocks, 32)."""


def write_blocks(own: Path, before: Path | None, value: npt.NDArray[Any]) -> Digests:
    """Store an array's bytes in the folder `own`, which one process writes, and sync what is new. Local.

    before: the folder of the same part in another set; its equal blocks are linked. Raises OSError when the disk
    refuses.
    """
    own.mkdir(exist_ok=True)
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    digests = []
    for start in range(0, len(data), BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        digests.append(hashlib.sha256(block).digest())
        path = own / digests[-1].hex()
        if not path.exists() and not _linked(before, path, len(block)):
            with path.open("wb") as file:
                file.write(block)
                file.flush()
                os.fsync(file.fileno())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST_BYTES)


def read_blocks(own: Path, digests: Digests, value: npt.NDArray[Any]) -> None:
    """Fill `value`, which is contiguous, with the bytes that were stored; `check_blocks` first. Local."""
    data = value.reshape(-1).view(np.uint8).data
    for number, digest in enumerate(digests):
        with _path(own, digest).open("rb") as file:
            file.readinto(data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])


def check_blocks(own: Path, digests: Digests) -> None:
    """Raise ValueError for a block that is missing or damaged. Local."""
    for digest in digests:
        path = _path(own, digest)
        if not path.is_file():
            raise ValueError(f"{path} is missing")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").digest() != digest.tobytes():
                raise ValueError(f"{path} does not match the hash that is its name")


def _path(own: Path, digest: Digests) -> Path:
    return own / digest.tobytes().hex()


def _linked(before: Path | None, path: Path, size: int) -> bool:
    """Have the block of the other set stand here too; False where there is none of this size, or no hard links."""
    if before is None:
        return False
    try:
        there = before / path.name
        if there.stat().st_size != size:
            return False
        os.link(there, path)
    except OSError:
        return False
    return True
