"""`hpcrl plan`: measure the parts, forecast every split of the ranks, show the best; and run it, to compare."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace

from rich.console import Console

from hpcrl.bench.plan.calibrate import calibrate
from hpcrl.bench.plan.check import run_for
from hpcrl.bench.plan.model import Place, forecast, preferred
from hpcrl.bench.plan.report import Plan, as_json, findings, render
from hpcrl.bench.plan.sizes import sizes
from hpcrl.bench.plan.splits import smallest_world, splits
from hpcrl.comm.ranks import resize
from hpcrl.config import ConfigError, ExitCode, RunConfig
from hpcrl.launch.memory import memory_limit
from hpcrl.launch.needs import needs
from hpcrl.launch.start import mpi_starts_later

_WIDTH = 120
"""Of output that goes into a file."""
_OTHERS = 3
"""Splits that are shown beside the best."""


def plan_command(config: RunConfig, options: argparse.Namespace) -> int:
    """Plan as `options` say (see bench.plan.arguments), print tables or one JSON object, return the exit code.

    Raises ConfigError where the ranks cannot be divided, or a number makes no sense.
    """
    place = _place(options, len(os.sched_getaffinity(0)))
    found = make_plan(config, options, place)
    if options.check:
        best = found.best
        seen = run_for(best.config, best.num_ranks, options.check_seconds)
        had = Place(1, max(min(seen.cores, place.cores_per_node), 0.01))
        as_long = best.config.with_overrides([f"budget.env_steps={seen.env_steps}"])  # ages grow with a run
        got = forecast(as_long, found.cal, had, best.num_ranks)
        found = replace(found, measured=seen, for_what_it_got=got)
    if options.json:
        sys.stdout.write(json.dumps(as_json(found, options.recipe), indent=2) + "\n")
    else:
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(render(found, options.recipe))
    return int(ExitCode.FINISHED)


def make_plan(config: RunConfig, options: argparse.Namespace, place: Place) -> Plan:
    """Calibrate, and forecast every split. Starts processes; Local.

    Raises ConfigError, before anything is measured, where the ranks cannot be divided.
    """
    cores = int(place.nodes * place.cores_per_node)
    num_ranks = options.ranks or (config.world_size if options.as_is else max(cores, smallest_world(config)))
    nodes = place.of_ranks(num_ranks)
    candidates = [resize(config, num_ranks)] if options.as_is else splits(config, num_ranks)
    cal = calibrate(candidates, num_ranks, options.rounds, options.seconds)
    forecasts = [forecast(one, cal, place, num_ranks) for one in candidates]
    best = preferred(forecasts)
    with mpi_starts_later():
        asked = needs(best.config, nodes)
    replay_bytes = sum(int(node["replay_bytes"]) for node in asked)
    needed = sizes(best, cal, place.nodes, replay_bytes)
    others = sorted((one for one in forecasts if one is not best), key=lambda one: -one.env_steps_per_s)
    return Plan(
        best, tuple(others[:_OTHERS]), needed, cal, place, tuple(findings(best, needed, memory_limit()))
    )


def _place(options: argparse.Namespace, here: int) -> Place:
    cores = here if options.cores_per_node is None else options.cores_per_node
    for name, value in (
        ("--nodes", options.nodes),
        ("--cores-per-node", cores),
        ("--gbit", options.gbit),
        ("--ranks", 1 if options.ranks is None else options.ranks),
        ("--rounds", options.rounds),
        ("--seconds", options.seconds),
        ("--check-seconds", options.check_seconds),
    ):
        if value <= 0:
            raise ConfigError(f"{name} {value:g} must be above 0")
    if options.check and (options.nodes, cores) != (1, here):
        raise ConfigError(
            f"--check runs here, on one node of {here} cores; leave --nodes and --cores-per-node away"
        )
    return Place(options.nodes, cores, options.gbit * 1e9 / 8)
