"""Gradients in private memory, summed in one piece: of one learner, small ones, and those that travel as messages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hpcrl.functional.square_sum import square_sum

Vector = npt.NDArray[np.float32]
Extras = npt.NDArray[np.float64]


class LocalGradient:
    """The gradient of a single learner: the sum is what is there."""

    def __init__(self, size: int) -> None:
        self.memory = np.zeros(size, np.float32)
        """float32 [size], this learner's gradient and the result"""
        self.buckets: tuple[range, ...] = (range(size),)

    def start(self, bucket: int, *, compress: bool = False) -> None:
        """Nothing happens before `finish`."""

    def poll(self) -> None:
        """Nothing to progress."""

    def finish(self, extras: Extras, *, compress: bool = False) -> Vector:
        """Local."""
        return self.memory

    def square_sum(self) -> float:
        """Sum of the squares of the result; not finite only where an entry is not. Local."""
        return square_sum(self.memory)

    def close(self) -> None:
        """Nothing to give back."""


class PlainGradient:
    """The gradient of one of several learners, copied and summed when it is complete."""

    def __init__(self, size: int, sum_: Callable[[Vector, Extras, bool], None]) -> None:
        """`sum_(gradient, extras, compress)` replaces both by their sums over the learners."""
        from hpcrl.comm import kernels

        self.memory = np.zeros(size, np.float32)
        """float32 [size], this learner's gradient"""
        self.buckets: tuple[range, ...] = (range(size),)
        self._sum = sum_
        self._result = np.zeros(size, np.float32)
        self._squares = np.zeros(kernels.num_blocks(size))

    def start(self, bucket: int, *, compress: bool = False) -> None:
        """Nothing happens before `finish`."""

    def poll(self) -> None:
        """Nothing to progress."""

    def finish(self, extras: Extras, *, compress: bool = False) -> Vector:
        """Replace `extras` by their sums; the sum of the gradients, float32 [size]. Collective over the learners."""
        np.copyto(self._result, self.memory)
        self._sum(self._result, extras, compress)
        return self._result

    def square_sum(self) -> float:
        """Sum of the squares of the result, in float64; the same for all learners and node maps. Local."""
        from hpcrl.comm import kernels

        kernels.square_sums(self._result, self._squares)
        return kernels.total(self._squares)

    def close(self) -> None:
        """Nothing to give back."""
