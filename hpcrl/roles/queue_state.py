"""Trajectories that wait to be trained on, as they lie in a checkpoint.

Each has a number: that of its batch (`data/reuse.py`) * K + its position among the K trajectories of that batch. With
it the trajectories of all parts fall into order again, whatever ranks there are then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hpcrl.data.specs import TrajectorySpec
from hpcrl.data.trajectory import Trajectory, TrajectoryLayout
from hpcrl.storage.parts import Given, Values

Bytes = npt.NDArray[np.uint8]


class QueueState:
    """Collects trajectories for a component `queue`, or reads one. Local."""

    def __init__(self, spec: TrajectorySpec) -> None:
        self._layout = TrajectoryLayout(spec)
        self._columns = spec.num_envs
        self._numbers: list[int] = []
        self._versions: list[int] = []
        self._rows: list[Bytes] = []
        self.foreign = 0
        """Trajectories of another layout that `load` has left out."""

    def add(self, row: Bytes, number: int, version: int) -> None:
        """A trajectory in its row, granted under `version`; copied."""
        self._numbers.append(number)
        self._versions.append(version)
        self._rows.append(row[: self._layout.nbytes].copy())

    def add_joined(self, batch: Trajectory, numbers: Sequence[int]) -> None:
        """Trajectories that lie side by side, one for each number; copied."""
        for index, number in enumerate(numbers):
            columns = slice(index * self._columns, (index + 1) * self._columns)
            row = self._layout.allocate(1)[0]
            version, origin = int(batch.fields["parameter_version"][0, columns][0]), batch.origin[columns]
            actor, grant = int(origin["actor"][0]), int(origin["grant"][0])
            alone = self._layout.begin(
                row, attempt=0, version=version, actor=actor, grant=grant, envs=range(self._columns)
            )
            for name, array in alone.fields.items():
                array[...] = batch.fields[name][:, columns]
            alone.origin[...] = origin
            alone.seal(checksum=int(batch.header["checksum"]) != 0)
            self.add(row, number, version)

    def values(self) -> Given:
        """For the checkpoint: digest, number [N], version [N], rows uint8 [N, bytes]."""
        return {
            "digest": self._layout.digest,
            "number": np.array(self._numbers, np.int64),
            "version": np.array(self._versions, np.int64),
            "rows": np.stack(self._rows) if self._rows else np.zeros((0, self._layout.nbytes), np.uint8),
        }

    def load(self, values: Values) -> None:
        """Add what one part holds; all of it is left out if its layout is another one."""
        number, version, rows = (np.asarray(values[name]) for name in ("number", "version", "rows"))
        if values["digest"] != self._layout.digest:
            self.foreign += len(number)
            return
        self._numbers += number.tolist()
        self._versions += version.tolist()
        self._rows += list(rows)

    def in_order(self) -> list[tuple[int, int, Bytes]]:
        """(number, version, row) of each, by number."""
        order = sorted(range(len(self._numbers)), key=lambda index: self._numbers[index])
        return [(self._numbers[index], self._versions[index], self._rows[index]) for index in order]
