"""`hpcrl bench`: end to end, reference and ceilings side by side in one go, compared as ratios.

Absolute figures depend on the machine and on what else runs on it. Every round holds all measurements, so
that the ratios hold on a machine whose speed drifts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from rich.table import Table

from hpcrl.bench.ceilings import measure_ceilings
from hpcrl.bench.child import call
from hpcrl.bench.engines import reference_network
from hpcrl.bench.machine import machine
from hpcrl.config import ConfigError, RunConfig
from hpcrl.envs.from_envpool import registered_ids

Measured = dict[str, Any]
RunEndToEnd = Callable[[RunConfig], Measured]

LIMITING = ("environment_and_policy", "updates")
"""The ceilings that a run meets whole: an actor's work and a learner's."""


def bench_loop(
    config: RunConfig,
    rounds: int,
    run_end_to_end: RunEndToEnd,
    *,
    ceiling_s: float = 2.0,
    reference_env_steps: int | None = None,
) -> dict[str, Any]:
    """Measure `rounds` times and take medians.

    Args:
        config: The run to measure; its budget is that of each end-to-end measurement.
        rounds: Each is the reference (the faster of default and one torch thread), all ceilings, one end-to-end
            run, in this order.
        run_end_to_end: Starts a real run and returns at least {"env_steps_per_s": ...}.
        ceiling_s: Seconds of each ceiling's measurement, at least one call.
        reference_env_steps: Budget of the reference; None: 20 updates' worth for vectors, 3 for images.

    Returns:
        JSON types only: `end_to_end`, `reference`, `slowest_ceiling` (with its `name`) and each of `ceilings`
        as {"env_steps_per_s": median, "env_steps_per_s_rounds": [...]}; `ratios`; `rounds`, all raw figures;
        `config`; `machine`.

    Raises:
        ConfigError: no rounds, an environment that EnvPool does not have, actors that send gradients, a replay memory.
    """
    if config.algorithm.sends_gradients:
        raise ConfigError(
            f"bench loop measures updates from trajectories; with algorithm.name={config.algorithm.name} actors send "
            "gradients: use algorithm.name=a2c, which computes the same"
        )
    if config.algorithm.uses_replay:
        raise ConfigError(
            f"bench loop measures updates from trajectories, not from the replay memory of algorithm.name="
            f"{config.algorithm.name}; use a recipe of another algorithm"
        )
    if rounds < 1:
        raise ConfigError(f"rounds={rounds} measures nothing; use 1 or more, 3 or more for a median")
    if config.env.id not in registered_ids():
        raise ConfigError(
            f"env.id={config.env.id!r} is not one of EnvPool's environments, on which the reference runs; "
            "choose an env.id that it has"
        )
    network = reference_network(config.model.torso)
    arguments = {
        "env_id": config.env.id,
        "env_steps": reference_env_steps or (20_480 if network == "mlp" else 3_072),
        "network": network,
    }
    raw: list[dict[str, Any]] = []
    for index in range(rounds):
        reference = faster_reference({**arguments, "seed": config.seed + index})
        ceilings = measure_ceilings(config, ceiling_s)
        raw.append({"reference": reference, "ceilings": ceilings, "end_to_end": run_end_to_end(config)})
    return {**summarize(raw), "rounds": raw, "config": config.to_dict(), "machine": machine()}


def summarize(raw: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rounds, the slowest ceiling, and the ratios between the medians."""
    end_to_end = _median([entry["end_to_end"] for entry in raw])
    reference = _median([entry["reference"] for entry in raw])
    # An engine may not exist apart from its adapter; then there is nothing to measure.
    ceilings = {
        name: _median([entry["ceilings"][name] for entry in raw])
        for name, measured in raw[0]["ceilings"].items()
        if measured
    }
    name = min(LIMITING, key=lambda limiting: ceilings[limiting]["env_steps_per_s"])
    speed = end_to_end["env_steps_per_s"]
    return {
        "end_to_end": end_to_end,
        "reference": reference,
        "slowest_ceiling": {"name": name, **ceilings[name]},
        "ceilings": ceilings,
        "ratios": {
            "end_to_end_over_slowest_ceiling": speed / ceilings[name]["env_steps_per_s"],
            "end_to_end_over_reference": speed / reference["env_steps_per_s"],
        },
    }


def render(result: dict[str, Any]) -> Table:
    """Lay out the result of `bench_loop` for a terminal."""
    speed = result["end_to_end"]["env_steps_per_s"]
    table = Table(title=f"{result['config']['name']}, median of {len(result['rounds'])} rounds")
    table.add_column("measured")
    table.add_column("env_steps/s", justify="right")
    table.add_column("end to end is", justify="right")
    rows = {
        "end to end": result["end_to_end"],
        "reference: CleanRL-style PPO on EnvPool": result["reference"],
        **{f"one core alone: {name}": measured for name, measured in result["ceilings"].items()},
    }
    slowest = f"one core alone: {result['slowest_ceiling']['name']}"
    for name, measured in rows.items():
        ratio = speed / measured["env_steps_per_s"]
        table.add_row(
            f"{name} (slowest ceiling)" if name == slowest else name,
            f"{measured['env_steps_per_s']:,.0f}",
            "" if name == "end to end" else f"{ratio:.2f} x",
        )
    return table


def faster_reference(arguments: dict[str, Any]) -> Measured:
    """Run the reference with torch's default threads and with one, which small networks or busy cores prefer."""
    tried = [
        call("hpcrl.bench.reference:run_reference", {**arguments, "num_threads": threads}, one_core=False)
        for threads in (None, 1)
    ]
    return max(tried, key=lambda measured: float(measured["env_steps_per_s"]))


def _median(measured: list[Measured]) -> Measured:
    speeds = [entry["env_steps_per_s"] for entry in measured]
    return {"env_steps_per_s": statistics.median(speeds), "env_steps_per_s_rounds": speeds}
