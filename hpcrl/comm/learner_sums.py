"""Which sums several learners take where: in shared memory or by messages, and how across nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm import kernels
from hpcrl.comm.bell import Bells
from hpcrl.comm.compress import make_codec
from hpcrl.comm.exchange import Exchange, Form, cheapest_form
from hpcrl.comm.groups import LearnerComms
from hpcrl.comm.message_sum import MessageSum
from hpcrl.comm.node_order import find_node_order
from hpcrl.comm.node_sum import NodeGradient, bucket_ranges, segment_bytes, slice_of
from hpcrl.comm.plain_gradient import PlainGradient
from hpcrl.comm.small_sum import SMALL_BYTES, SmallSum
from hpcrl.comm.wait import Waiter
from hpcrl.comm.window import PAGE, SharedWindow, fits_in_shared_memory
from hpcrl.config import ConfigError, ReductionConfig
from hpcrl.config.hops import Timed

Array = npt.NDArray[Any]
State = dict[str, npt.NDArray[Any]]

_FIRST_TAG = 1
"""Of the gradient's messages on `cross`; 0 is that of small sums."""
_EAGER_S = 0.05
"""Large messages inside a node: some milliseconds when nobody sleeps in between, hundreds otherwise."""
_SHORT_WAIT = 4
"""Fruitless polls before a wait spends time on anything else."""


class LearnerSums:
    """Sums over more than one learner. Everything here is collective over them but for what is said to be local."""

    def __init__(
        self,
        comms: LearnerComms,
        waiter: Waiter,
        reduction: ReductionConfig,
        poll: Callable[[], None],
        timed: Timed,
    ) -> None:
        """`poll` is called in every wait, which is `timed`.

        Blocking; raises ConfigError, on all, when shared memory is too small.
        """
        self._comms = comms
        self._reduction = reduction
        self._poll = poll
        self._timed = timed
        self._waiter = waiter.with_alarm(None)  # nobody rings a bell when a message has come
        self._nodes = find_node_order(comms)
        self._fruitless = 0
        self._shared: list[SharedWindow] = []
        self._exchanges: list[Exchange] = []
        self._exact_form, self._compress = self._choose_exchange()
        self._compile()
        self._messages = MessageSum(comms.node, self._nodes, partial(self.wait, eager_s=_EAGER_S))
        self._bells: Bells | None = None
        self._small: SmallSum | None = None
        if reduction.form != "messages" and self._fit(1 << 20):
            if comms.node.size > 1:
                self._bells = Bells(comms.node)
                self._waiter = waiter.with_alarm(self._bells)
            self._small = SmallSum(comms.node, self._nodes, self._bells, self.wait)

    @property
    def description(self) -> str:
        """One sentence. Local."""
        inside = "by messages" if self._small is None else "in shared memory"
        count = self._nodes.num_nodes
        text = f"gradients of {self._comms.group.size} learners on {count} node{'s' * (count > 1)}: {inside}"
        if count == 1:
            return text
        text += f" inside a node, {self._exact_form} across"
        wanted, warmup = self._reduction.compression, self._reduction.warmup_updates
        if self._compress:
            return text + f", compressed ({wanted}, all_gather) from update {warmup} on"
        return text + ("" if wanted == "none" else f", not compressed: {wanted} would not save bytes here")

    @property
    def sent_bytes(self) -> int:
        """Payload of this rank's messages; those of a gradient only while it is open. Local."""
        sums = self._messages.sent_bytes + (self._small.sent_bytes if self._small else 0)
        return sums + sum(exchange.sent_bytes for exchange in self._exchanges)

    def wait(self, ready: Callable[[], bool], eager_s: float = 0.0) -> None:
        """Return when `ready()`; the gradient and MPI make progress meanwhile. `eager_s` as in Waiter.until. Local."""
        if not ready():
            self._fruitless = 0
            with self._timed("reducer.wait"):
                self._waiter.until(lambda: ready() or self._progress(), eager_s=eager_s)

    def sum_array(self, *arrays: Array) -> None:
        """Replace contiguous 1-D arrays by their sums."""
        for array in arrays:
            if self._small is None or (array.nbytes > SMALL_BYTES and self._nodes.num_nodes > 1):
                self._messages.sum_array(array)
                continue
            step = SMALL_BYTES // array.itemsize
            for start in range(0, array.size, step):
                self._small.sum(array[start : start + step])

    def number(self, value: float) -> float:
        """The sum of one number."""
        vector = np.array([value])
        self.sum_array(vector)
        return float(vector[0])

    def open_gradient(self, size: int, exact: Sequence[range]) -> NodeGradient | PlainGradient:
        """Memory for a gradient, where its sum is cheapest. `exact`: ranges that are not to be compressed."""
        self._exchanges = []
        if self._small is not None and 4 * size <= SMALL_BYTES and not self._compress:
            small = self._small
            return PlainGradient(size, lambda gradient, extras, compress: small.sum(gradient, extras))
        node = self._comms.node
        buckets = bucket_ranges(size, self._reduction.bucket_bytes)
        make = partial(self._make_exchange, exact) if self._nodes.num_nodes > 1 else None
        if self._small is None or not self._fit(segment_bytes(size, len(buckets), node.rank)):
            shard = self._messages.shard(size)
            return PlainGradient(
                size, partial(self._sum_by_messages, make(shard) if make and shard else None)
            )
        gradient = NodeGradient(node, self._bells, size, buckets, self.wait)
        gradient.divide(self._nodes.smallest, make, self.sum_array if make else None)
        return gradient

    def share(self, vectors: Sequence[Array]) -> tuple[list[Array], range] | None:
        """Copies of float32 vectors that the node has in common; see HierarchicalReducer.share."""
        node = self._comms.node
        nbytes = sum(vector.nbytes + PAGE for vector in vectors) if node.rank == 0 else 0
        if self._small is None or not self._fit(nbytes):
            return None
        window = SharedWindow(node, nbytes)
        self._shared.append(window)
        memories, start = [], 0
        for vector in vectors:
            memory = window.segments[0][start : start + vector.nbytes].view(vector.dtype)
            if node.rank == 0:
                memory[...] = vector
            memories.append(memory)
            start += -(-vector.nbytes // PAGE) * PAGE
        self.wait_for_node()
        return memories, slice_of(range(vectors[0].size), node.size, node.rank)

    def wait_for_node(self) -> None:
        """Wait for the ranks of this node, which see what was written to shared memory. Collective over the node."""
        if self._small is None:
            raise RuntimeError("learners that sum by messages have no memory in common")
        self._small.wait_for_node()

    def state(self) -> State:
        """Residuals of this rank's codecs, copied. Local."""
        return {
            f"exchange{index}/{name}": array
            for index, exchange in enumerate(self._exchanges)
            for name, array in (exchange.codec.state() if exchange.codec else {}).items()
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Restore `state`; nothing has changed when it raises ValueError. Local."""
        current = self.state()
        if {name: array.shape for name, array in current.items()} != {
            name: array.shape for name, array in state.items()
        }:
            raise ValueError(
                f"compression state {sorted(state)} is of another network, node map or compression; "
                f"here it is {sorted(current)}"
            )
        for index, exchange in enumerate(self._exchanges):
            start = f"exchange{index}/"
            own = {name.removeprefix(start): array for name, array in state.items() if name.startswith(start)}
            if exchange.codec is not None:
                exchange.codec.load_state(own)

    def close(self) -> None:
        """Give the shared memory back; an open gradient is closed before. Collective."""
        for window in self._shared:
            window.close()
        if self._small is not None:
            self._small.close()
        if self._bells is not None:
            self._bells.close()

    def _make_exchange(self, exact: Sequence[range], own: range) -> Exchange:
        inside = [
            (max(part.start, own.start) - own.start, min(part.stop, own.stop) - own.start)
            for part in exact
            if part.start < own.stop and part.stop > own.start
        ]
        codec = make_codec(self._reduction, len(own), inside) if self._compress else None
        tag = self._exchanges[-1].next_tag if self._exchanges else _FIRST_TAG
        exchange = Exchange(self._nodes, len(own), self._exact_form, tag, codec)
        self._exchanges.append(exchange)
        return exchange

    def _sum_by_messages(
        self, exchange: Exchange | None, gradient: Array, extras: Array, compress: bool
    ) -> None:
        self._messages.sum_array(gradient, exchange, compress=compress)
        self.sum_array(extras)

    def _choose_exchange(self) -> tuple[Form, bool]:
        """The form of what is exact, and whether gradients are compressed (then by all-gather)."""
        reduction = self._reduction
        kept = {"none": 1.0, "bf16": 0.5, "int8": 0.266, "topk": 2 * reduction.topk_fraction}
        if reduction.exchange == "auto":
            exact, _ = cheapest_form(self._nodes.num_nodes, 1.0)
            return exact, cheapest_form(self._nodes.num_nodes, kept[reduction.compression])[1]
        compress = reduction.compression != "none"
        if compress and reduction.exchange == "two_phase":
            raise ConfigError(
                "reduction.exchange=two_phase is always exact: use auto or all_gather with "
                f"reduction.compression={reduction.compression}"
            )
        return reduction.exchange, compress

    def _progress(self) -> bool:
        self._poll()
        self._fruitless += 1
        if self._fruitless > _SHORT_WAIT:
            # messages of other kinds that are under way (parameters, batches) move on only inside MPI calls
            self._comms.group.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        return False

    def _fit(self, nbytes: int) -> bool:
        """Whether `nbytes` from each rank fit on every node. Raises ConfigError where they must."""
        fits = fits_in_shared_memory(self._comms.node, nbytes)
        if self._comms.group.allreduce(int(fits), MPI.MIN):
            return True
        if self._reduction.form == "shared":
            raise ConfigError(
                "reduction.form=shared: too little shared memory is left in /dev/shm of some node; "
                "use auto or messages, or give the job more"
            )
        return False

    def _compile(self) -> None:
        """One rank of the node compiles, the others load what it left."""
        node = self._comms.node
        for turn in (0, 1):
            if turn == min(node.rank, 1):
                kernels.compile_for(node.size)
                kernels.compile_for(self._nodes.num_nodes)
            self._waiter.until(node.Ibarrier().Test)
