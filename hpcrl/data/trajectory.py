"""A trajectory in memory: one contiguous buffer, a fixed header, and the fields as views of it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.data.specs import TrajectorySpec

ALIGNMENT = 64
MAGIC = 0x4850_4352_4C54_3031

HEADER = np.dtype(
    [
        ("magic", "<i8"),
        ("digest", "<i8"),  # layout fingerprint, TrajectorySpec.digest
        ("attempt", "<i8"),
        ("version_first", "<i8"),  # parameter versions of the first and the last env_step
        ("version_last", "<i8"),
        ("actor", "<i8"),  # role_rank
        ("first_env", "<i8"),  # global index of column 0; columns are consecutive
        ("num_envs", "<i8"),  # used columns; the rest is not valid
        ("grant", "<i8"),  # number of the grant this trajectory answers
        ("valid_steps", "<i8"),
        ("nbytes", "<i8"),
        ("checksum", "<i8"),  # CRC-32 of everything behind the header, 0 when switched off
        # of a part of a batch that was sampled:
        ("inserted", "<i8"),  # valid env_steps that its replay rank has ever taken in
        ("largest_weight", "<f8"),  # of that replay rank's whole share of the batch
    ]
)
HEADER_BYTES = -(-HEADER.itemsize // ALIGNMENT) * ALIGNMENT

ORIGIN = np.dtype([("attempt", "<i4"), ("actor", "<i4"), ("grant", "<i8")])
"""Of each column: who collected it, in which attempt, and the grant it answered. No two trajectories of a run share it;
unlike the header, it stays when trajectories are joined into a batch, or wait in a checkpoint for another attempt."""

Bytes = npt.NDArray[np.uint8]


class ForeignTrajectoryError(ValueError):
    """A buffer that is not a trajectory of this run: other layout, other attempt, or damaged."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Views of one buffer; valid as long as its owner says so."""

    header: Any
    """A 0-d structured view: `header["grant"] = 3` writes into the buffer."""
    fields: dict[str, npt.NDArray[Any]]
    origin: npt.NDArray[np.void]
    """ORIGIN [num_envs]"""
    buffer: Bytes

    def seal(self, checksum: bool) -> None:
        """Fill in what depends on the payload, before sending. Local."""
        self.header["valid_steps"] = int(self.fields["valid"].sum())
        self.header["checksum"] = zlib.crc32(self.buffer[HEADER_BYTES:].data) if checksum else 0


class TrajectoryLayout:
    """Where each field of a TrajectorySpec lies in the buffer: structure of arrays at 64-byte offsets.

    Behind the header lies the origin of each column, then the fields.
    """

    def __init__(self, spec: TrajectorySpec) -> None:
        self.spec = spec
        self.digest = spec.digest
        self._places: list[tuple[str, int, tuple[int, ...], np.dtype[Any]]] = []
        offset = HEADER_BYTES + -(-spec.num_envs * ORIGIN.itemsize // ALIGNMENT) * ALIGNMENT
        for field in spec.fields:
            shape = (field.entries(spec.unroll_length), spec.num_envs, *field.shape)
            dtype = np.dtype(field.dtype)
            self._places.append((field.name, offset, shape, dtype))
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        self.nbytes = offset

    def allocate(self, count: int, *, poison: bool = False) -> npt.NDArray[np.uint8]:
        """[count, nbytes] bytes, aligned to 64; filled with 0xFF (NaN in floats) when `poison`, else zeros."""
        raw = np.zeros(count * self.nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        rows = raw[start : start + count * self.nbytes].reshape(count, self.nbytes)
        if poison:
            rows[...] = 0xFF
        return rows

    def view(self, buffer: Bytes) -> Trajectory:
        """Header and fields of one buffer of `nbytes` bytes, without a copy."""
        fields = {
            name: np.ndarray(shape, dtype, buffer=buffer, offset=offset)
            for name, offset, shape, dtype in self._places
        }
        origin = np.ndarray((self.spec.num_envs,), ORIGIN, buffer=buffer, offset=HEADER_BYTES)
        return Trajectory(np.ndarray((), HEADER, buffer=buffer), fields, origin, buffer)

    def begin(
        self, buffer: Bytes, *, attempt: int, version: int, actor: int, grant: int, envs: range
    ) -> Trajectory:
        """A view for writing, with the header filled in and columns beyond len(envs) cleared (not valid)."""
        trajectory = self.view(buffer)
        for array in trajectory.fields.values():
            array[:, len(envs) :] = 0
        header = trajectory.header
        header["magic"], header["digest"], header["nbytes"] = MAGIC, self.digest, self.nbytes
        header["attempt"], header["actor"], header["grant"] = attempt, actor, grant
        header["version_first"] = header["version_last"] = version
        header["first_env"], header["num_envs"] = envs.start, len(envs)
        trajectory.fields["parameter_version"][...] = version
        trajectory.origin[...] = (attempt, actor, grant)
        return trajectory

    def join(self, buffer: Bytes, trajectories: Sequence[Trajectory]) -> Trajectory:
        """Copy trajectories side by side into `buffer`: the columns of the first, then those of the second, ...

        Together they have the columns of this layout; fields and unroll_length are equal.
        """
        joined = self.view(buffer)
        for name, array in joined.fields.items():
            start = 0
            for trajectory in trajectories:
                source = trajectory.fields[name]
                array[:, start : start + source.shape[1]] = source
                start += source.shape[1]
        joined.origin[...] = np.concatenate([one.origin for one in trajectories])
        first = trajectories[0].header
        header = joined.header
        for name in HEADER.names or ():
            header[name] = first[name]
        header["digest"], header["nbytes"] = self.digest, self.nbytes
        header["version_first"] = min(int(one.header["version_first"]) for one in trajectories)
        header["version_last"] = max(int(one.header["version_last"]) for one in trajectories)
        header["num_envs"] = sum(int(one.header["num_envs"]) for one in trajectories)
        joined.seal(checksum=int(first["checksum"]) != 0)
        return joined

    def check(self, buffer: Bytes, attempt: int) -> Trajectory:
        """A view for reading. Raises ForeignTrajectoryError saying what does not fit."""
        trajectory = self.view(buffer)
        header = trajectory.header
        for name, want in (
            ("magic", MAGIC),
            ("digest", self.digest),
            ("nbytes", self.nbytes),
            ("attempt", attempt),
        ):
            if int(header[name]) != want:
                raise ForeignTrajectoryError(f"trajectory {name} is {int(header[name])}, expected {want}")
        checksum = int(header["checksum"])
        if checksum and checksum != zlib.crc32(buffer[HEADER_BYTES:].data):
            raise ForeignTrajectoryError(f"checksum of trajectory {int(header['grant'])} differs")
        return trajectory
