"""Observations of the replay rings: whole, or of stacks of frames only the newest frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]

COPIES, ZEROS, ODD = 0, 1, 2
"""First stack of a chain: copies of its newest frame, or zeros before that; from ODD on: the place of the whole."""


class WholeObservations:
    """Each observation as it is."""

    nbytes = 0

    def __init__(self, obs: Array) -> None:
        """obs: [rows, *shape], where they lie."""
        self._obs = obs

    def write(self, slots: Slots, obs: Array, columns: Slots) -> None:
        """Store obs [U+1, B, ...] but the last at slots [U, B]."""
        self._obs[slots] = obs[:-1]

    def read(self, slots: Slots, rows: int, out: Array) -> None:
        """Copy the observations of slots [count] to `out`, contiguous."""
        np.take(self._obs, slots, axis=0, out=out, mode="clip")


class StackedFrames:
    """The newest frame of each stack, and of every row how many before it are those of the rows before.

    A stack that does not go on from the one before begins a chain. Its k - 1 older frames are copies of the newest,
    zeros, or whatever else: then the stack is kept whole in a table beside.
    """

    def __init__(self, frames: Array, depth: Array, origin: Array, columns: int) -> None:
        """frames [rows + 1, ...], the last one zeros; depth uint8, origin int32 [rows]."""
        from hpcrl.data import replay_kernels

        self._kernels = replay_kernels
        self._frames, self._depth, self._origin = frames, depth, origin
        self._odd: Array = np.zeros((0, 0, *frames.shape[1:]), frames.dtype)
        self._free: list[int] = []
        self._goes_on = np.zeros(columns, bool)
        """Whether the stack after a column's newest row goes on from that."""
        self._last_depth = np.zeros(columns, np.uint8)
        self._last_origin = np.zeros(columns, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of the odd stacks."""
        return self._odd.nbytes

    def write(self, slots: Slots, obs: Array, columns: Slots) -> None:
        """Store obs [U+1, B, k, ...] but the last at slots [U, B], which are rows of the `columns` [B]."""
        self._forget(slots)
        most = obs.shape[2] - 1
        goes_on = np.empty((len(obs), len(columns)), bool)
        goes_on[0] = self._goes_on[columns]
        self._kernels.goes_on(words(obs, 3), goes_on[1:])
        depth, origin = self._last_depth[columns], self._last_origin[columns]
        for step, row in enumerate(slots):
            depth = np.where(goes_on[step], np.minimum(depth + 1, most), 0).astype(np.uint8)
            new = np.flatnonzero(~goes_on[step])
            if new.size:
                origin = origin.copy()
                origin[new] = [self._begin(stack) for stack in obs[step, new]]
            self._depth[row], self._origin[row] = depth, origin
        self._frames[slots] = obs[:-1, :, -1]
        self._goes_on[columns] = goes_on[-1]
        self._last_depth[columns], self._last_origin[columns] = depth, origin

    def read(self, slots: Slots, rows: int, out: Array) -> None:
        """Copy the stacks of slots [count] to `out` [count, k, ...], contiguous; `rows` of each column's ring."""
        k = out.shape[1]
        self._kernels.read_stacks(
            words(self._frames, 1), self._depth, self._origin, slots, rows, words(out, 2)
        )
        depth, origin = self._depth[slots], self._origin[slots]
        for index in np.flatnonzero((origin >= ODD) & (depth < k - 1)):
            missing = k - 1 - depth[index]
            out[index, :missing] = self._odd[origin[index] - ODD, k - 1 - missing : k - 1]

    def state(self) -> dict[str, Array]:
        """What there is beside frames, depth and origin."""
        return {
            "odd_stacks": self._odd,
            "goes_on": self._goes_on,
            "last_depth": self._last_depth,
            "last_origin": self._last_origin,
        }

    def load_column(self, saved: Mapping[str, Array], column: int, source: int, slots: Slots) -> None:
        """Go on with a column whose rows were copied to `slots`, oldest first; `source`: the same column of `saved`."""
        origin, depth = self._origin[slots], self._depth[slots]
        last = int(saved["last_origin"][source])
        places = {int(one): COPIES for one in origin[origin >= ODD]}  # whose first row is gone: not sampled
        for odd in origin[(origin >= ODD) & (depth == 0)].tolist():
            places[odd] = self._keep(saved["odd_stacks"][odd - ODD])
        self._origin[slots] = [places.get(one, one) for one in origin.tolist()]
        self._goes_on[column], self._last_depth[column] = (
            saved["goes_on"][source],
            saved["last_depth"][source],
        )
        self._last_origin[column] = places.get(last, last if last < ODD else COPIES)

    def _begin(self, stack: Array) -> int:
        """Kind of the first stack [k, ...] of a chain; an odd one is kept."""
        older, newest = words(stack[:-1], 1), words(stack[-1:], 1)
        if (older == newest).all():
            return COPIES
        if not older.any():
            return ZEROS
        return self._keep(stack)

    def _keep(self, stack: Array) -> int:
        """Put an odd stack into the table."""
        if not self._free:
            grown = max(2 * len(self._odd), 4)
            table = np.zeros((grown, *stack.shape), stack.dtype)
            table[: len(self._odd)] = self._odd.reshape(len(self._odd), *stack.shape)
            self._free = list(range(len(self._odd), grown))
            self._odd = table
        place = self._free.pop()
        self._odd[place] = stack
        return place + ODD

    def _forget(self, slots: Slots) -> None:
        """Free the odd stacks whose chains began in rows that are overwritten: the rest of each is not sampled."""
        gone = self._origin[slots][(self._depth[slots] == 0)]
        self._free += (gone[gone >= ODD] - ODD).tolist()


def words(array: Array, kept_axes: int) -> Array:
    """All but the first axes as one axis of words, to be compared exactly; a view where the array is contiguous."""
    rows = np.ascontiguousarray(array)
    rows = rows.reshape(*rows.shape[:kept_axes], -1).view(np.uint8)
    return rows.view(np.uint64) if rows.shape[-1] % 8 == 0 else rows
