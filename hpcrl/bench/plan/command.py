"""`hpcrl plan`: measure the parts, forecast every split of the ranks, show the best; and run it, to compare."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from hpcrl.bench.plan.calibrate import Rounds, calibration, measure_rounds
from hpcrl.bench.plan.check import run_for
from hpcrl.bench.plan.model import Place, forecast, preferred
from hpcrl.bench.plan.report import Plan, as_json, findings, render
from hpcrl.bench.plan.sizes import sizes
from hpcrl.bench.plan.splits import smallest_world, splits
from hpcrl.comm.ranks import resize
from hpcrl.config import ConfigError, ExitCode, RunConfig
from hpcrl.launch.memory import memory_limit

_WIDTH = 120
"""Of output that goes into a file."""
_OTHERS = 3
"""Splits that are shown beside the best."""


def plan_command(config: RunConfig, options: argparse.Namespace) -> int:
    """Plan as `options` say (see bench.plan.arguments), print tables or one JSON object, return the exit code.

    Raises ConfigError where the ranks cannot be divided, or a number makes no sense.
    """
    place = _place(options, len(os.sched_getaffinity(0)))
    try:
        candidates, num_ranks = _candidates(config, options, place)
        rounds = measure_rounds(candidates, num_ranks, options.rounds, options.seconds)
        found = make_plan(candidates, rounds, place, num_ranks)
        if options.check:
            found = _checked(found, candidates, rounds, options)
    except RuntimeError as error:  # with the output of the process that failed
        lines = [line for line in str(error).splitlines() if line.strip()]
        sys.stderr.write(
            f"hpcrl: a measurement failed: {lines[-1].strip()}\n"
            f"hpcrl: `hpcrl run {options.recipe} --ranks 1` shows whether the recipe runs here at all\n"
        )
        return int(ExitCode.ERROR)
    if options.json:
        sys.stdout.write(json.dumps(as_json(found, options.recipe), indent=2) + "\n")
    else:
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(render(found, options.recipe))
    return int(ExitCode.FINISHED)


def _checked(
    plan: Plan, candidates: Sequence[RunConfig], rounds: Rounds, options: argparse.Namespace
) -> Plan:
    """With what the best split does here, and then another calibration. Starts processes; Local.

    A machine that others use may be faster or slower a minute later; so what is compared with the run is a forecast
    from the rounds on both sides of it.
    """
    best = plan.best
    seen = run_for(best.config, best.num_ranks, options.check_seconds)
    again = measure_rounds(candidates, best.num_ranks, options.rounds, options.seconds)
    had = Place(1, max(min(seen.cores, plan.place.cores_per_node), 0.01))
    as_long = best.config.with_overrides([f"budget.env_steps={seen.env_steps}"])  # ages grow with a run
    got = forecast(as_long, calibration(candidates, rounds + again), had, best.num_ranks)
    return replace(plan, measured=seen, for_what_it_got=got)


def _candidates(config: RunConfig, options: argparse.Namespace, place: Place) -> tuple[list[RunConfig], int]:
    """The splits to compare, and their ranks. Raises ConfigError where the ranks cannot be divided."""
    cores = int(place.nodes * place.cores_per_node)
    num_ranks = options.ranks or (config.world_size if options.as_is else max(cores, smallest_world(config)))
    place.of_ranks(num_ranks)
    return [resize(config, num_ranks)] if options.as_is else splits(config, num_ranks), num_ranks


def make_plan(candidates: Sequence[RunConfig], rounds: Rounds, place: Place, num_ranks: int) -> Plan:
    """Forecast every split, from what was measured. Pure, but for a look at this machine's memory."""
    cal = calibration(candidates, rounds)
    forecasts = [forecast(one, cal, place, num_ranks) for one in candidates]
    best = preferred(forecasts)
    needed = sizes(best, cal, place.nodes)
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
