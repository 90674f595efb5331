"""The prioritized replay memory: in one process beside its peers, and as shards on ranks of their own."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.bench.mpi.compare import Comparison, lines
from hpcrl.bench.mpi.timing import Case, meet, nothing, time_cases
from hpcrl.bench.mpi.worlds import layout, opened
from hpcrl.bench.replay import BATCH, BETA, CONTESTANTS, ENVS, KINDS, Hpcrl, Kind, missing_peers
from hpcrl.comm.ranks import share
from hpcrl.comm.replay_link import SLOTS, BatchClient, BatchServer
from hpcrl.comm.rows import Arena
from hpcrl.comm.world import World
from hpcrl.data.replay_memory import Sample
from hpcrl.data.specs import transition_spec
from hpcrl.data.trajectory import TrajectoryLayout

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

_MOVES = {"float32": 40, "uint8": 4}
_AIMS = {"cpprb": 1.0, "tianshou": 3.0}
_AIM_OF_SHARDS = {2: 0.6}


def replay(comm: Comm, rounds: int) -> dict[str, Any]:
    """Add, draw and update 256 transitions, of small observations and of images; by one rank, beside peers, or by all.

    Collective over `comm`.
    """
    return in_process(comm, rounds) if comm.size == 1 else through_ranks(comm, rounds)


def in_process(comm: Comm, rounds: int) -> dict[str, Any]:
    """One memory beside those of others. Collective over one rank."""
    missing = missing_peers()
    measured: dict[str, Any] = {}
    comparisons = []
    for kind in KINDS:
        moves = _MOVES[kind.dtype]
        cases = {}
        for who, make in CONTESTANTS.items():
            if who not in missing:
                work = partial(_moves, make(kind), moves)
                cases[f"{kind.name}, {who}"] = Case(work, units=moves * BATCH)
        measured |= time_cases(comm, cases, rounds)
        comparisons += [
            Comparison(f"{kind.name}, hpcrl", f"{kind.name}, {who}", "speed", aim)
            for who, aim in _AIMS.items()
        ]
    notes = [f"{name}: {1 / case['seconds']:,.0f} transitions/s" for name, case in measured.items()]
    if missing:
        notes.append(f"Not compared with {', '.join(missing)}: not installed (extra 'bench').")
    return {
        "title": "Prioritized replay in one process: add, draw, update 256; time of a transition",
        "cases": measured,
        "lines": lines(measured, comparisons),
        "notes": notes,
    }


def through_ranks(comm: Comm, rounds: int) -> dict[str, Any]:
    """The same on shards, one on each rank but rank 0: that learns, asks two ahead, and sends priorities back.

    Each shard inserts trajectories of its share of the environments, as they lie in its rows when an actor has sent
    them, and writes its share of a batch where the learner reads it. Collective over `comm`; 2 ranks or more.
    """
    shards = comm.size - 1
    measured: dict[str, Any] = {}
    comparisons = []
    with opened(comm) as world:
        where = layout(world)
        for kind in KINDS:
            moves = 5 * _MOVES[kind.dtype]
            alone = partial(_moves, Hpcrl(kind), moves) if comm.rank == 1 else nothing
            link = Shards(world, kind)
            name, reference = f"{kind.name}, {shards} shards", f"{kind.name}, in one process"
            cases = {
                name: Case(partial(link.move, moves), units=moves * BATCH),
                reference: Case(alone, units=moves * BATCH),
            }
            measured |= time_cases(comm, cases, rounds)
            aim = _AIM_OF_SHARDS.get(shards) if where["nodes"] == 1 else None
            comparisons.append(Comparison(name, reference, "speed", aim))
            link.close()
    notes = [f"{name}: {1 / case['seconds']:,.0f} transitions/s" for name, case in measured.items()]
    title = (
        f"Prioritized replay, {shards} shards and a learner on {where['nodes']} nodes; time of a transition"
    )
    return {
        "title": title,
        **where,
        "cases": measured,
        "lines": lines(measured, comparisons),
        "notes": notes,
    }


class Shards:
    """One rank's part: the learner's on rank 0, a shard's elsewhere."""

    def __init__(self, world: World, kind: Kind) -> None:
        """Collective over the world."""
        rank, shards = world.rank, world.comm.size - 1
        parts = [len(share(BATCH, shards, shard)) for shard in range(shards)]
        self._comm, self._waiter = world.comm, world.waiter
        rows = [TrajectoryLayout(transition_spec(Hpcrl.env_spec(kind), part)) for part in parts]
        arena = Arena(world, SLOTS * shards if rank == 0 else 0, max(row.nbytes for row in rows))
        rng = np.random.default_rng(0)
        self._td = [np.abs(rng.normal(size=part)).astype(np.float32).tobytes() for part in parts]
        self._clients = [
            BatchClient(world, 1 + shard, arena, SLOTS * shard, 4 * part)
            for shard, part in enumerate(parts if rank == 0 else ())
        ]
        self._server: BatchServer | None = None
        if rank:
            mine = rank - 1
            self._count, self._rows = parts[mine], rows[mine]
            envs = len(share(ENVS, shards, mine))
            self._full = Hpcrl(kind, envs, kind.capacity * envs // ENVS)
            self._server = BatchServer(world, 0, arena, SLOTS * mine, 4 * self._count)
            self._sent: deque[Sample] = deque()
        self._share = 1 / shards

    def move(self, times: int) -> None:
        """Add, draw and update so many batches. Collective over the world."""
        self._waiter.reset()
        if self._server is None:
            self._learn(times)
        else:
            for _ in range(times):
                self._serve(self._server)

    def close(self) -> None:
        """Drain. Collective over the world."""
        ends: list[BatchClient | BatchServer] = [*self._clients]
        if self._server is not None:
            ends.append(self._server)
        for end in ends:
            end.close()
        for end in ends:
            self._waiter.until(partial(_drained, end))
            end.cancel()
        meet(self._comm, self._waiter)

    def _learn(self, times: int) -> None:
        for _ in range(SLOTS):
            self._ask()
        for batch in range(times):
            for client in self._clients:
                while (answer := client.poll()) is None:
                    self._waiter.idle()
                answer[0]
            self._waiter.reset()
            if batch + SLOTS < times:
                self._ask()

    def _ask(self) -> None:
        for client, td in zip(self._clients, self._td, strict=True):
            client.ask(td)

    def _serve(self, server: BatchServer) -> None:
        """Insert, answer one request; the priorities that came with it are those of the oldest batch but two."""
        memory = self._full.memory
        memory.insert(self._full.trajectory)
        server.poll()
        while (note := server.take_request()) is None:
            server.poll()
            self._waiter.idle()
        if len(self._sent) >= SLOTS:
            memory.update_priorities(self._sent.popleft(), np.frombuffer(note, np.float32))
        sample = memory.sample(self._count, BETA, self._share)
        while (buffer := server.begin()) is None:
            server.poll()
            self._waiter.idle()
        memory.gather(sample, self._rows.view(buffer), slice(0, self._count))
        server.send()
        self._sent.append(sample)
        self._waiter.reset()


def _drained(end: BatchClient | BatchServer) -> bool:
    return end.drained


def _moves(contestant: Any, times: int) -> None:
    for _ in range(times):
        contestant.move()
