"""Sums over the learners: inside a node in shared memory, then each rank's share across nodes.

Every sum is taken in a fixed tree order, so the result is bit-equal on all learners and from run to run; with
power-of-two node sizes it does not even depend on how the learners are divided over nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.groups import LearnerComms
from hpcrl.comm.plain_gradient import LocalGradient
from hpcrl.comm.wait import Waiter
from hpcrl.config import ReductionConfig
from hpcrl.config.hops import Timed

if TYPE_CHECKING:
    from torch import Tensor

    from hpcrl.comm.learner_sums import LearnerSums

Vector = npt.NDArray[np.float32]
State = dict[str, npt.NDArray[Any]]


class HierarchicalReducer:
    """Sums over the learners of LearnerComms.

    Everything here is collective over `comms.group` but for what is said to be local. Waits are polite and have no
    time limit: a rank that dies ends the job, also for those who wait for it.
    """

    def __init__(
        self,
        comms: LearnerComms,
        waiter: Waiter,
        reduction: ReductionConfig | None = None,
        *,
        debug: bool = False,
        timed: Timed = nullcontext,
    ) -> None:
        """Collective over the learners; blocking, and compiles on first use on a machine.

        `debug`: compare operation and size with the other learners' before each collective. `timed`: around hops.
        Raises ConfigError when shared memory is demanded and there is not enough.
        """
        self._comms = comms
        self._waiter = waiter
        self._debug = debug
        self._reduction = reduction or ReductionConfig()
        self._sequence = 0
        self._compress = False
        self._gradient: Gradient = LocalGradient(0)
        self._opened = -1
        self._sums: LearnerSums | None = None
        self.extra_sums = np.zeros(0)
        """float64, the sums of the extras of the last `finish`"""
        self._timed = timed
        if comms.group.size > 1:
            # numba is behind this: a second that a single learner need not pay
            from hpcrl.comm.learner_sums import LearnerSums

            self._sums = LearnerSums(comms, waiter, self._reduction, self.poll, timed)

    @property
    def description(self) -> str:
        """How sums are taken, as one sentence for the log. Local."""
        return "one learner: nothing to sum" if self._sums is None else self._sums.description

    @property
    def sent_bytes(self) -> int:
        """Payload of this rank's messages so far; what goes through shared memory does not count. Local."""
        return 0 if self._sums is None else self._sums.sent_bytes

    def sum_(self, vector: Tensor) -> None:
        """Replace a contiguous 1-D CPU float32/float64 vector by its sum over all learners."""
        self.sum_array(vector.detach().numpy())

    def sum_array(self, vector: npt.NDArray[Any]) -> None:
        """As `sum_`, for a contiguous 1-D numpy array."""
        self._compare_fingerprint(1, vector.size, vector.dtype.itemsize)
        if self._sums is not None and vector.size:
            self._sums.sum_array(vector)

    def any_true(self, flag: bool) -> bool:
        """Whether `flag` is true on any learner: the condition of a branch around a collective."""
        self._compare_fingerprint(2, 1, 4)
        if self._sums is None:
            return flag
        return self._sums.number(float(flag)) > 0

    def barrier(self) -> None:
        """Wait, politely and however long it takes, until every learner is here."""
        self._compare_fingerprint(4, 0, 0)
        if self._sums is not None:
            self._sums.number(0.0)

    def broadcast_array(self, vector: npt.NDArray[Any]) -> None:
        """Overwrite every learner's vector by that of role_rank 0."""
        self._compare_fingerprint(3, vector.size, vector.dtype.itemsize)
        if self._sums is not None:
            self._sums.wait(self._comms.group.Ibcast([vector.view(np.uint8), MPI.BYTE], 0).Test)

    def open_gradient(self, size: int, exact: Sequence[range] = ()) -> Vector:
        """This learner's gradient, float32 [size], at first zero: to be filled in place, then summed by `finish`.

        `exact`: sorted, disjoint ranges that are never compressed. With the same size the memory is the same, and
        the call local; with another one the gradient that was open before is closed. The memory belongs to this
        learner except between the `start` of a bucket and the end of `finish`; it is gone after `close`.
        """
        if self._opened == size:
            return self._gradient.memory
        self._opened = size
        self._compare_fingerprint(5, size, 4)
        self._gradient.close()
        if self._sums is None:
            self._gradient = LocalGradient(size)
        else:
            self._gradient = self._sums.open_gradient(size, exact)
        return self._gradient.memory

    @property
    def buckets(self) -> tuple[range, ...]:
        """Parts of the gradient that may be started on their own, in the order in which a backward pass ends them."""
        return self._gradient.buckets

    def start(self, bucket: int) -> None:
        """This learner's part of a bucket is complete; invalidates the last result. Never waits; any order."""
        self._gradient.start(bucket, compress=self._compress)

    def poll(self) -> None:
        """Progress with what was started. Never waits. Local."""
        self._gradient.poll()

    def finish(self, extras: Sequence[float] = ()) -> Vector:
        """Start what was not, and wait for the sum: float32 [size], read-only, valid until the next `start`.

        `extras`: a few numbers, equally many on all learners, whose exact sums are `extra_sums` afterwards.
        Raises RuntimeError before `open_gradient`.
        """
        if self._opened < 0:
            raise RuntimeError("no gradient is open")
        with self._timed("reducer.mean_gradients"):
            self._compare_fingerprint(6, self._gradient.memory.size, len(extras))
            self.extra_sums = np.array(extras, np.float64)
            return self._gradient.finish(self.extra_sums, compress=self._compress)

    def square_sum(self) -> float:
        """Sum of the squares of the last result: equal on all learners, whatever the division over nodes. Local."""
        return self._gradient.square_sum()

    def share(self, vectors: Sequence[Vector]) -> tuple[list[Vector], range] | None:
        """One copy of some float32 [size] vectors for each node, and the range of elements that is this learner's.

        They hold learner 0's values of each node at first. Whoever writes its own range calls `wait_for_node` before
        anybody reads. The memory is gone after `close`. None where learners share no memory.
        """
        self._compare_fingerprint(7, sum(vector.size for vector in vectors), len(vectors))
        return None if self._sums is None else self._sums.share(vectors)

    def wait_for_node(self) -> None:
        """Wait for the learners of this node; what they have written to shared vectors is seen. After `share`."""
        if self._sums is not None:
            self._sums.wait_for_node()

    def begin_update(self, update: int) -> None:
        """Compress from here on, if at all, unless `update` is one of the first. Local; equal on all learners."""
        self._compress = update >= self._reduction.warmup_updates

    def state(self) -> State:
        """What compression kept for the next gradient, copied; differs from learner to learner. Local."""
        return {} if self._sums is None else self._sums.state()

    def load_state(self, state: State) -> None:
        """Continue from the `state` of the same learner; after `open_gradient`. Local.

        Raises ValueError where it belongs to another size, another node map or another compression.
        """
        if self._sums is not None:
            self._sums.load_state(state)
        elif state:
            raise ValueError(
                "one learner keeps nothing for the next gradient, but this state holds something"
            )

    def close(self) -> None:
        """Give the shared memory back; the gradient and the last result may not be touched afterwards."""
        self._opened = -1
        self._gradient.close()
        self._gradient = LocalGradient(0)
        if self._sums is not None:
            self._sums.close()

    def _compare_fingerprint(self, operation: int, size: int, itemsize: int) -> None:
        if not self._debug:
            return
        group = self._comms.group
        self._sequence += 1
        mine = np.array([operation, size, itemsize, self._sequence], np.int64)
        everyone = np.empty((group.size, 4), np.int64)
        request = group.Iallgather([mine, MPI.INT64_T], [everyone, MPI.INT64_T])
        self._waiter.until(request.Test)
        for role_rank, other in enumerate(everyone):
            if not np.array_equal(other, everyone[0]):
                raise RuntimeError(
                    f"learner {role_rank} is about to call collective (operation, size, itemsize, number) = "
                    f"{other.tolist()} while learner 0 calls {everyone[0].tolist()}"
                )


class Gradient(Protocol):
    """A gradient of each learner and their sum."""

    memory: Vector
    buckets: tuple[range, ...]

    def start(self, bucket: int, *, compress: bool = False) -> None:
        """This learner's part of a bucket is complete."""

    def poll(self) -> None:
        """Progress."""

    def finish(self, extras: npt.NDArray[np.float64], *, compress: bool = False) -> Vector:
        """Start what was not, sum `extras` in place, and wait for the sum."""

    def square_sum(self) -> float:
        """Sum of the squares of the last sum."""

    def close(self) -> None:
        """Give the memory back."""
