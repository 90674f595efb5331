"""What a learner tells a replay memory after each update, as bytes in its requests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcrl.config import RunConfig

_HEAD = np.dtype([("said", "<i8"), ("batch", "<i8"), ("env_steps", "<i8"), ("has_priorities", "<i8")])


class UpdateNote(NamedTuple):
    """Of one learner to one replay rank."""

    batch: int
    """Number of the batch that was trained on."""
    env_steps: int
    """Of the run, after the update."""
    td: npt.NDArray[np.float32] | None
    """|TD error| of each of its columns from this replay rank; None: their priorities stay."""


def note_bytes(config: RunConfig, columns: int) -> int:
    """Length of a note on so many columns; 0 where there is no replay memory. Pure."""
    if not config.algorithm.uses_replay:
        return 0
    return _HEAD.itemsize + (4 * columns if config.replay.sampling == "prioritized" else 0)


def write_note(note: UpdateNote) -> bytes:
    """The note as bytes. Pure."""
    head = np.array((1, note.batch, note.env_steps, note.td is not None), _HEAD)
    return head.tobytes() + (b"" if note.td is None else np.asarray(note.td, np.float32).tobytes())


def read_note(message: bytes) -> UpdateNote | None:
    """What `write_note` was given, from a message of `note_bytes`; None where nothing was said. Pure."""
    head = np.frombuffer(message[: _HEAD.itemsize], _HEAD)[0]
    if not head["said"]:
        return None
    td = np.frombuffer(message[_HEAD.itemsize :], np.float32) if head["has_priorities"] else None
    return UpdateNote(int(head["batch"]), int(head["env_steps"]), td)
