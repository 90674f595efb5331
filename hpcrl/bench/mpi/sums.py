"""Sums of gradients: hpcrl's reducer beside a memcpy, the MPI library's all-reduce, gloo, and the speed of the link."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcrl.bench import raw_mpi
from hpcrl.bench.cost_model import FORMS, Machine, link_bytes, predict
from hpcrl.bench.mpi.compare import Comparison, lines, size_label
from hpcrl.bench.mpi.gloo import gloo_group, gloo_sum
from hpcrl.bench.mpi.timing import Case, nothing, time_cases
from hpcrl.bench.mpi.worlds import layout, opened
from hpcrl.comm.reduce import HierarchicalReducer
from hpcrl.comm.world import World
from hpcrl.config import ReductionConfig

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

Vector = npt.NDArray[np.float32]

MESSAGES = "hpcrl by messages"
MEMCPY, LIBRARY, GLOO = "memcpy by every rank", "library's Allreduce", "torch gloo"
SHARED_MEMCPY = "memcpy to shared memory"
"""It comes in smaller pages than a process's own, which alone makes a copy, and a sum, slower."""
LINK, ROUND_TRIP, MODEL = "link alone", "1 KB there and back", "model"
_COMPRESSED = ("bf16", "int8", "topk")
_LARGE = 16 << 20
_SLOW_LINK_BYTES_PER_S = 2.5e8
"""Below it compression has to pay."""


def sums(
    comm: Comm, sizes: Sequence[int] | None, rounds: int, nodes: Sequence[str] | None = None
) -> dict[str, Any]:
    """Sums over all ranks of vectors of `sizes` bytes of float32. Collective over `comm`.

    None: 1, 16 and 128 MB on one node, 1 and 16 MB on several. `nodes` as in `open_world`.
    """
    measured: dict[str, Any] = {}
    found, notes = [], []
    with opened(comm, nodes=nodes) as world:
        where = layout(world)
        chosen = sizes or [1 << 20, _LARGE] + [128 << 20] * (where["nodes"] == 1)
        with gloo_group(comm) if where["nodes"] == 1 and comm.size > 1 else nullcontext():
            for nbytes in chosen:
                vectors = Vectors(comm.rank, nbytes)
                forms = _forms(world, nbytes, where["nodes"])
                times = time_cases(comm, _cases(world, forms, vectors, where["nodes"]), rounds)
                times |= _derived(times, nbytes, where)
                label = size_label(nbytes)
                measured |= {f"{label}, {name}": result for name, result in times.items()}
                found += [
                    {**line, "case": f"{label}, {line['case']}"}
                    for line in lines(times, _comparisons(times, nbytes, where))
                ]
                notes.append(_fingerprint(comm, forms, vectors, label))
                for form in forms.values():
                    form.close()
    title = f"Sums of gradients, {where['ranks']} ranks on {where['nodes']} nodes"
    speeds = asdict(_machine(times, nbytes, where["ranks_per_node"]))
    return {"title": title, **where, "cases": measured, "lines": found, "notes": notes, "speeds": speeds}


class Vectors:
    """What one rank sums: the same gradient before each timing."""

    def __init__(self, rank: int, nbytes: int) -> None:
        """Local."""
        rng = np.random.default_rng(rank)
        self.gradient: Vector = rng.standard_normal(nbytes // 4, np.float32)
        """Never written after this."""
        self.own = self.gradient.copy()
        self.total = np.zeros_like(self.gradient)


class Sum:
    """One way in which hpcrl sums."""

    def __init__(self, world: World, nbytes: int, reduction: ReductionConfig) -> None:
        """Collective over the world."""
        if world.learners is None:
            raise RuntimeError("a rank of this world does not learn")
        self._reducer = HierarchicalReducer(world.learners, world.waiter, reduction)
        self.gradient = self._reducer.open_gradient(nbytes // 4)
        self._reducer.begin_update(0)

    def sum(self) -> Vector:
        """Sum the gradient over all ranks, where it lies. Collective over the world."""
        return self._reducer.finish()

    def close(self) -> None:
        """Collective over the world."""
        self.gradient = np.zeros(0, np.float32)
        self._reducer.close()


def _forms(world: World, nbytes: int, nodes: int) -> dict[str, Sum]:
    if nodes == 1:
        forms = {"hpcrl": Sum(world, nbytes, ReductionConfig())}
        if world.comm.size > 1 and nbytes <= _LARGE:  # seconds beyond that
            forms[MESSAGES] = Sum(world, nbytes, ReductionConfig(form="messages"))
        return forms
    return {
        _name(exchange, compression): Sum(
            world, nbytes, ReductionConfig(exchange=exchange, compression=compression, warmup_updates=0)
        )
        for exchange, compression in FORMS
    }


def _name(exchange: str, compression: str) -> str:
    return f"hpcrl {exchange} {'exact' if compression == 'none' else compression}"


def _cases(world: World, forms: dict[str, Sum], vectors: Vectors, nodes: int) -> dict[str, Case]:
    own = partial(np.copyto, vectors.own, vectors.gradient)
    cases = {
        name: Case(form.sum, partial(np.copyto, form.gradient, vectors.gradient))
        for name, form in forms.items()
    }
    cases[MEMCPY] = Case(partial(np.copyto, vectors.total, vectors.own), own)
    if world.comm.size == 1:
        return cases
    if nodes == 1:
        cases[SHARED_MEMCPY] = Case(partial(np.copyto, forms["hpcrl"].gradient, vectors.own), own)
    cases[LIBRARY] = Case(partial(world.comm.Allreduce, vectors.own, vectors.total), own)
    if nodes == 1:
        cases[GLOO] = Case(partial(gloo_sum, vectors.own), own)
        return cases
    # all ranks of a node at once, each with its share: one of them alone may not fill a fast link
    pairs = world.learners.cross if world.learners is not None else world.comm
    share = vectors.own.view(np.uint8)[: vectors.own.nbytes // layout(world)["ranks_per_node"]]
    first_nodes = pairs.size > 1
    cases[LINK] = Case(partial(raw_mpi.one_way, pairs, share) if first_nodes else nothing)
    small = np.zeros(1024, np.uint8)
    talks = first_nodes and world.node.comm.rank == 0
    cases[ROUND_TRIP] = Case(partial(raw_mpi.one_way, pairs, small) if talks else nothing)
    return cases


def _derived(times: dict[str, Any], nbytes: int, where: dict[str, Any]) -> dict[str, Any]:
    """What the cost model says, from the memory and the link that were measured beside it."""
    nodes, local = where["nodes"], where["ranks_per_node"]
    machine = _machine(times, nbytes, local)
    predicted = {
        "hpcrl" if nodes == 1 else _name(entry.exchange, entry.compression): entry.seconds
        for entry in predict(nbytes, nodes, local, machine)
    }
    derived = {
        f"{MODEL}, {name}": {"seconds": seconds} for name, seconds in predicted.items() if name in times
    }
    if nodes > 1:
        bound = link_bytes("two_phase", nbytes, nodes) / machine.link_bytes_per_s
        derived["bound of the link"] = {"seconds": bound}
    return derived


def _machine(times: dict[str, Any], nbytes: int, local: int) -> Machine:
    memory = local * nbytes / times[MEMCPY]["seconds"]
    if LINK not in times:
        return Machine(link_bytes_per_s=memory, memory_bytes_per_s=memory)
    latency = times[ROUND_TRIP]["seconds"] / 2
    return Machine(
        link_bytes_per_s=nbytes / max(times[LINK]["seconds"] - 2 * latency, 1e-9),
        link_latency_s=latency,
        memory_bytes_per_s=memory,
    )


def _comparisons(times: dict[str, Any], nbytes: int, where: dict[str, Any]) -> list[Comparison]:
    """Whatever of this was measured is shown."""
    return (
        _inside_a_node(nbytes, where["ranks"])
        if where["nodes"] == 1
        else _between_nodes(times, nbytes, where)
    )


def _inside_a_node(nbytes: int, ranks: int) -> list[Comparison]:
    large = nbytes >= _LARGE
    than_library = {2: 3.5, 4: 4.5}.get(ranks) if large else 2.5
    return [
        Comparison("hpcrl", MEMCPY, "time", 1.0 if large and ranks == 2 else None, nbytes),
        Comparison("hpcrl", SHARED_MEMCPY, "time", None, nbytes),
        Comparison("hpcrl", LIBRARY, "speed", than_library, nbytes),
        Comparison("hpcrl", GLOO, "speed", 8.0 if large else None, nbytes),
        Comparison("hpcrl", f"{MODEL}, hpcrl", "time", None, nbytes),
        Comparison(MESSAGES, LIBRARY, "speed", None, nbytes),
    ]


def _between_nodes(times: dict[str, Any], nbytes: int, where: dict[str, Any]) -> list[Comparison]:
    nodes, large = where["nodes"], nbytes >= _LARGE
    all_gather, two_phase = _name("all_gather", "none"), _name("two_phase", "none")
    exact = all_gather if nodes == 2 else two_phase
    machine = _machine(times, nbytes, where["ranks_per_node"])
    pays = large and nodes == 2 and machine.link_bytes_per_s < _SLOW_LINK_BYTES_PER_S
    aims = {"bf16": 1.5, "int8": 2.2, "topk": 4.0}
    return [
        Comparison(exact, "bound of the link", "time", 1.25 if large else None, nbytes),
        Comparison(exact, LIBRARY, "speed", 1.5 if large and nodes == 2 else None, nbytes),
        Comparison(two_phase, all_gather, "speed", 1.3 if large and nodes > 2 else None, nbytes),
        *[
            Comparison(_name("all_gather", name), exact, "speed", aim if pays else None, nbytes)
            for name, aim in aims.items()
        ],
        *[Comparison(_name(*form), f"{MODEL}, {_name(*form)}", "time", None, nbytes) for form in FORMS],
    ]


def _fingerprint(comm: Comm, forms: dict[str, Sum], vectors: Vectors, label: str) -> str:
    """CRC of each exact sum, for comparison with other runs. Collective over `comm`.

    Raises RuntimeError where ranks hold different bits, by whatever form.
    """
    found = []
    for name, form in forms.items():
        np.copyto(form.gradient, vectors.gradient)
        everywhere = set(comm.allgather(zlib.crc32(form.sum().data)))
        if len(everywhere) > 1:
            raise RuntimeError(f"{name}: the ranks hold {len(everywhere)} different sums of {label}")
        if not name.endswith(_COMPRESSED):  # those depend on what the sums before left out
            found.append(f"{name.removeprefix('hpcrl ')} {everywhere.pop():08x}")
    return f"CRC-32 of the sum of {label}, equal on all ranks: {', '.join(found)}"
