"""`hpcrl bench comm|reduce|publish|replay|replay-link`: which measurements on how many ranks, and the output."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hpcrl.bench.cost_model import Machine, predict
from hpcrl.bench.machine import machine
from hpcrl.bench.mpi.compare import render
from hpcrl.bench.mpi.ranks import join_ranks, start_ranks
from hpcrl.config import ConfigError, ExitCode, load_object
from hpcrl.launch.situation import Situation, look

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

_WIDTH = 140
"""Of output that goes into a file."""


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement of a command."""

    function: str
    """module:function in hpcrl.bench.mpi, called with `comm`, `rounds` and, if sized, `sizes`"""
    ranks: tuple[int, ...]
    """Worlds to start where there is none."""
    sized: bool = True
    """Takes `sizes`."""
    sizes: tuple[int, ...] | None = None
    """Bytes, unless the command line says others; None: the measurement knows."""


PARTS: dict[str, tuple[Part, ...]] = {
    "reduce": (Part("sums:sums", (2, 4)),),
    "comm": (
        Part("transfer:transfers", (2,), sizes=(64 << 10, 256 << 10, 1 << 20)),
        Part("fan_in:fan_in", (8,), sized=False),
        Part("waiting:waiting", (2,), sized=False),
    ),
    "publish": (Part("parameters:publication", (4,), sizes=(1 << 20, 4 << 20, 16 << 20)),),
    "replay": (Part("replay:replay", (1, 2, 3, 4, 5), sized=False),),
    "replay-link": (Part("batches:batches", (2,), sizes=(512, 4 << 10, 28 << 10)),),
}
"""Of each command."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    rounds: int = 15
    sizes: tuple[int, ...] = ()
    """Bytes; empty: the usual ones."""
    ranks: tuple[int, ...] = ()
    """Worlds to start; empty: the usual ones. Not inside a world."""
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sum whose time is to be predicted."""

    parameters: int
    nodes: int | None = None
    """None: as many as the world has."""
    ranks_per_node: int | None = None
    gbit_per_s: float | None = None
    """The link of a node; None: measured, which takes a world on two nodes or more."""


def bench_command(what: str, options: Options, wanted: Wanted | None = None) -> int:
    """Measure, print tables or one JSON object (on rank 0), return the exit code.

    Outside a world the measurements get worlds of their own, one after the other; inside one they get that. With
    `wanted` only what its prediction needs is measured: nothing where it names a link.
    """
    situation = look()
    try:
        result = _result(what, options, wanted, situation)
    except ConfigError as error:
        if situation.rank == 0:
            sys.stderr.write(f"hpcrl: {error}\n")
        return int(ExitCode.BAD_CONFIGURATION)
    if result is None or situation.rank != 0:
        return 0
    if options.as_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(render(result))
    return 0


def measure(comm: Comm, calls: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Make measurements (module:function in hpcrl.bench.mpi, arguments) one after the other; {"worlds": results}.

    Collective over `comm`; the same result on all ranks.
    """
    functions = [load_object(f"hpcrl.bench.mpi.{name}", "measurement") for name, _ in calls]
    results = [function(comm, **arguments) for function, (_, arguments) in zip(functions, calls, strict=True)]
    return {"worlds": results}


def plan(what: str, options: Options) -> dict[int, list[tuple[str, dict[str, Any]]]]:
    """What to measure on worlds of how many ranks; 0: on whatever world there is. Pure."""
    worlds: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    for part in PARTS[what]:
        arguments: dict[str, Any] = {"rounds": options.rounds}
        if part.sized:
            arguments["sizes"] = options.sizes or part.sizes
        for ranks in options.ranks or part.ranks:
            worlds.setdefault(ranks, []).append((part.function, arguments))
    return worlds


def _result(
    what: str, options: Options, wanted: Wanted | None, situation: Situation
) -> dict[str, Any] | None:
    if options.rounds < 1:
        raise ConfigError(f"rounds={options.rounds} measures nothing; use 1 or more, 7 or more for a median")
    if situation.in_world and options.ranks:
        raise ConfigError("--ranks starts ranks; inside a world all of its ranks are measured")
    result: dict[str, Any] = {"what": what, "rounds": options.rounds, "worlds": []}
    if wanted is None or wanted.gbit_per_s is None:
        measured = _measured(what, options, wanted, situation)
        if measured is None:
            return None
        result["worlds"] = measured
    if wanted is not None:
        result["prediction"] = prediction(wanted, result["worlds"])
    return result | {"machine": machine()}


def _measured(
    what: str, options: Options, wanted: Wanted | None, situation: Situation
) -> list[dict[str, Any]] | None:
    if wanted is not None:
        if not situation.in_world:
            raise ConfigError("name the link with --gbit, or start this on your nodes, where it is measured")
        options = replace(options, sizes=(4 * wanted.parameters,))
    if situation.in_world:
        calls = [call for calls in plan(what, replace(options, ranks=(0,))).values() for call in calls]
        joined = join_ranks("hpcrl.bench.mpi.command:measure", {"calls": calls})
        return None if joined is None else joined["worlds"]
    return [
        world
        for ranks, calls in plan(what, options).items()
        for world in start_ranks("hpcrl.bench.mpi.command:measure", {"calls": calls}, ranks)["worlds"]
    ]


def prediction(wanted: Wanted, worlds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Times of all forms of the sum, from the link that was named or measured. Pure."""
    if wanted.gbit_per_s is not None:
        speeds = Machine(link_bytes_per_s=wanted.gbit_per_s * 1e9 / 8)
        nodes, ranks = wanted.nodes or 1, wanted.ranks_per_node or 1
    else:
        world = worlds[0]
        if world["nodes"] == 1 and (wanted.nodes or 1) > 1:
            raise ConfigError("the link was not measured on one node; name it with --gbit")
        speeds = Machine(**world["speeds"])
        nodes, ranks = wanted.nodes or world["nodes"], wanted.ranks_per_node or world["ranks_per_node"]
    forms = predict(4 * wanted.parameters, nodes, ranks, speeds)
    return {
        "parameters": wanted.parameters,
        "nodes": nodes,
        "ranks_per_node": ranks,
        "speeds": asdict(speeds),
        "forms": [asdict(form) for form in forms],
    }
