"""A parameter vector from the window of one node straight into a buffer of another node's window.

Learner 0 orders: "what is in buffer b, to node k". Every learner that shares its memory sends its slice of that very
buffer, which stays untouched until all have said that their slice has left; the slices are of one version because they
are of one buffer. The receiver has offered a buffer for it before (a ready note), so that sends always complete. Each
slice carries the version all the same, and the receiver compares.

Orders and answers are words of the window: word k of learner 0 is its newest order for node k (number * buffers +
buffer; 0: none yet), word `nodes + k` of a sender the last order it has carried out, word `2 * nodes` of learner 0
becomes 1 after its last order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from hpcrl.comm.parameters import ParameterWindow
from hpcrl.comm.ranks import share
from hpcrl.comm.row_messages import free_requests
from hpcrl.comm.rows import Bytes
from hpcrl.comm.stream import Tag, complete, parts
from hpcrl.config import RunConfig

if TYPE_CHECKING:
    from hpcrl.comm.world import World

_MOST_BUFFERS = 8


def order_words(num_nodes: int) -> int:
    """Words that a window needs for the orders to so many nodes. Pure."""
    return 2 * num_nodes + 1


def window_bytes(config: RunConfig, num_parameters: int, world_size: int) -> int:
    """Shared memory that the parameters take on a node. Pure."""
    return ParameterWindow.nbytes(num_parameters, num_buffers(config), order_words(world_size))


def num_buffers(config: RunConfig) -> int:
    """Versions that a window holds at once. Pure."""
    return max(3, min(config.lag.max_lag + 1, _MOST_BUFFERS))


class SliceSender:
    """A learner's part in sending to one other node. Point-to-point, nonblocking, by persistent requests.

    A buffer of the window is read from the order on until this rank's answer.
    """

    tag = Tag.PARAMETERS

    def __init__(
        self, world: World, window: ParameterWindow, dest: int, node: int, num_nodes: int, part: range
    ) -> None:
        """Local. `part`: the entries this rank sends to world rank `dest`, of node number `node`."""
        self.dest = dest
        self._comm = world.comm_of(self.tag)
        self._wake = world.wake(dest)
        self._window = window
        self._order_word, self._done_word, self._end_word = node, num_nodes + node, 2 * num_nodes
        self._requests = [
            [
                self._comm.Send_init([piece, MPI.BYTE], dest, self.tag)
                for piece in _pieces(window, index, part, world.chunk_bytes)
            ]
            for index in range(window.buffers)
        ]
        self._nbytes = 8 + 4 * len(part)
        self._done = 0
        self._under_way = False
        self._end_note = np.zeros(1, np.int64)
        self._end_request: MPI.Request | None = None
        self.messages = self.bytes = 0

    def poll(self) -> None:
        """Begin a new order, or see whether the one under way is carried out."""
        order = self._window.word(self._window.writer, self._order_word)
        if order == self._done:
            return
        requests = self._requests[order % self._window.buffers]
        if not self._under_way:
            self._window.sync()  # the order before what it is about
            for request in requests:  # one by one: they must arrive in this order
                request.Start()
            self._wake()
            self._under_way = True
        if complete(requests):
            self._under_way = False
            self._done = order
            self._window.sync()  # all has been read
            self._window.set_word(self._done_word, order)
            self.messages += 1
            self.bytes += self._nbytes

    @property
    def drained(self) -> bool:
        """Learner 0 has given its last order, and it is carried out; the requests are given back then."""
        last = self._window.word(self._window.writer, self._end_word)
        self._window.sync()
        self.poll()
        if last and not self._under_way and self._end_request is None:
            self._end_note[0] = self.messages
            self._end_request = self._comm.Isend([self._end_note, MPI.INT64_T], self.dest, self.tag + 1)
        done = self._end_request is not None and bool(self._end_request.Test())
        if done:
            free_requests(self._requests)
        return done

    def state(self) -> str:
        """For a report: what this end has done and waits for."""
        under_way = "a version under way" if self._under_way else "nothing under way"
        return f"{self.tag.name} slices to rank {self.dest}: {self.messages} sent, {under_way}"


class SliceReceiver:
    """The one rank of another node that receives versions and publishes them there, each once all of it is here.

    Point-to-point with every sender, nonblocking. One buffer of the window is always offered, unless none is free.
    """

    tag = Tag.PARAMETERS

    def __init__(self, world: World, window: ParameterWindow, sources: tuple[int, ...], size: int) -> None:
        """Local. `sources`: world ranks of the senders, learner 0 first, in the order of their slices."""
        self.source = sources[0]
        self._comm = world.comm_of(self.tag)
        self._window = window
        self._landed = np.full(len(sources), -1, np.int64)
        self._requests = [self._receives(world, sources, size, index) for index in range(window.buffers)]
        self._offered: int | None = None
        self._end_notes = np.full((len(sources), 1), -1, np.int64)
        self._end_requests = [
            self._comm.Irecv([note, MPI.INT64_T], source, self.tag + 1)
            for note, source in zip(self._end_notes, sources, strict=True)
        ]
        self._ready = world.sender(self.source, self.tag)
        self.messages = self.bytes = 0

    def poll(self) -> bool:
        """Take in a version and publish it in the window; whether there was one."""
        self._offer()
        if self._offered is None or not complete(self._requests[self._offered]):
            return False
        version = int(self._landed[0])
        if (self._landed != version).any():
            raise RuntimeError(f"slices of different parameter versions: {self._landed.tolist()}")
        self._window.announce(self._offered, version)
        self._offered = None
        self.messages += 1
        self.bytes += 4 * self._window.vectors[0].size
        self._offer()
        return True

    @property
    def posted(self) -> int:
        """Buffers offered and not filled."""
        return int(self._offered is not None)

    @property
    def drained(self) -> bool:
        """Take in what still comes; every sender has ended, and nothing of it is under way."""
        if self._requests:
            self.poll()
            ended = complete(self._end_requests)
            if not ended or (self._end_notes != self.messages).any():
                return False
            self._cancel()
        return self._ready.drained

    def state(self) -> str:
        """For a report: what this end has done and waits for."""
        told = self._end_notes.ravel().tolist()
        return f"{self.tag.name} from rank {self.source}: {self.messages} versions came, ends told {told}"

    def _offer(self) -> None:
        if self._offered is not None or not self._requests:
            return
        self._offered = self._window.claim()
        if self._offered is not None:
            for request in self._requests[self._offered]:
                request.Start()
            self._ready.send(np.full(1, self.messages, np.int64))

    def _cancel(self) -> None:
        if self._offered is not None:
            for request in self._requests[self._offered]:
                request.Cancel()
                request.Wait()
            self._offered = None
        free_requests(self._requests)
        self._requests.clear()
        self._ready.close()

    def _receives(self, world: World, sources: tuple[int, ...], size: int, index: int) -> list[MPI.Prequest]:
        requests = []
        for number, source in enumerate(sources):
            _, *pieces = _pieces(self._window, index, share(size, len(sources), number), world.chunk_bytes)
            landed = self._landed[number : number + 1].view(np.uint8)
            requests += [
                self._comm.Recv_init([piece, MPI.BYTE], source, self.tag) for piece in (landed, *pieces)
            ]
        return requests


class Orders:
    """Learner 0's orders to all who share its memory, for one other node. Local but for the node's ready notes."""

    def __init__(
        self,
        world: World,
        window: ParameterWindow,
        receiver: int,
        node: int,
        num_nodes: int,
        senders: tuple[int, ...],
    ) -> None:
        """Local. `receiver`: world rank; `senders`: ranks of learner 0's node."""
        self.receiver = receiver
        self._window = window
        self._senders = senders
        self._order_word, self._done_word = node, num_nodes + node
        self._order = 0
        self._is_ready = False
        self._note = world.receiver(receiver, Tag.PARAMETERS)
        self._note.post(np.zeros(1, np.int64))
        self.under_way: int | None = None
        """Buffer that is being sent."""

    def poll(self) -> bool:
        """Whether the node is ready and nothing is under way to it: the next order may be given."""
        if (note := self._note.poll()) is not None:
            self._is_ready = True
            self._note.post(note)
        if self.under_way is not None and all(
            self._window.word(sender, self._done_word) == self._order for sender in self._senders
        ):
            self.under_way = None
        return self._is_ready and self.under_way is None

    def give(self, index: int) -> None:
        """Have buffer `index` sent; only after `poll` allowed it. The buffer must stay until it is not under way."""
        self._order = (self._order // self._window.buffers + 1) * self._window.buffers + index
        self.under_way, self._is_ready = index, False
        self._window.sync()  # the version before the order to send it
        self._window.set_word(self._order_word, self._order)

    @property
    def drained(self) -> bool:
        """Nothing is under way, and the node's receiver has ended."""
        self.poll()
        return self.under_way is None and self._note.drained

    def cancel(self) -> None:
        """Take the note's buffer back; only after `drained`."""
        self._note.cancel()


def _pieces(window: ParameterWindow, index: int, part: range, chunk_bytes: int) -> list[Bytes]:
    """The messages of one slice: the version, then the entries in parts."""
    memory = window.vectors[index][part.start : part.stop].view(np.uint8)
    return [window.version_bytes[index], *(memory[piece] for piece in parts(memory.nbytes, chunk_bytes))]
