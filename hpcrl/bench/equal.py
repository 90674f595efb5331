"""`hpcrl bench equal`: the work of a CleanRL-style loop, done by it and by hpcrl, side by side.

Same environments, network, minibatches and epochs; learning on. One row for each way in which hpcrl can do it says
what the pipeline brings, and what precision and layout of images bring.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any

from rich.table import Table

from hpcrl.bench.engines import reference_network
from hpcrl.bench.loop import faster_reference
from hpcrl.bench.machine import machine
from hpcrl.config import ConfigError, RunConfig, SurrogateConfig
from hpcrl.envs.from_envpool import registered_ids

PRECISIONS = {
    "float32": ("model.precision=float32", "model.channels_last=false"),
    "bfloat16, channels last": ("model.precision=bfloat16", "model.channels_last=true"),
}
"""What is set for each; the rest is the recipe's. Images are measured in both precisions, vectors in float32 only."""


def bench_equal(
    config: RunConfig, updates: int, rounds: int, measure: Callable[[RunConfig], dict[str, Any]]
) -> dict[str, Any]:
    """env_steps/s over `updates` updates, medians over interleaved rounds.

    Args:
        config: A run of PPO or its kin that the reference can do too.
        updates: Of each measurement; the first one does not count.
        rounds: Each is the reference (the faster of default and one torch thread), then all else.
        measure: Starts a real run and returns at least {"env_steps_per_s": ...}.

    Raises:
        ConfigError: nothing to measure, or the reference cannot do what the run does.
    """
    if rounds < 1 or updates < 2:
        raise ConfigError(f"rounds={rounds}, updates={updates}: use at least 1 round and 2 updates")
    work = reference_work(config)
    env_steps = updates * config.env.num_envs * config.algorithm.unroll_length
    precisions = PRECISIONS if config.model.torso == "nature_cnn" else {"float32": PRECISIONS["float32"]}
    runs = {
        f"{scheme}, {precision}": config.with_overrides((*settings, *kept, f"budget.env_steps={env_steps}"))
        for scheme, settings in _schemes(config).items()
        for precision, kept in precisions.items()
    }
    speeds: dict[str, list[float]] = {name: [] for name in ("reference", *runs)}
    for index in range(rounds):
        arguments = {
            "env_id": config.env.id,
            "env_steps": env_steps,
            "network": reference_network(config.model.torso),
            "seed": config.seed + index,
            "work": work,
        }
        speeds["reference"].append(faster_reference(arguments)["env_steps_per_s"])
        for name, run in runs.items():
            speeds[name].append(measure(run)["env_steps_per_s"])
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    rows = [
        {"way": name, "env_steps_per_s": speed, "over_reference": speed / medians["reference"]}
        for name, speed in medians.items()
    ]
    return {
        "recipe": config.name,
        "work": work,
        "rows": rows,
        "rounds": speeds,
        "config": config.to_dict(),
        "machine": machine(),
    }


def _schemes(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """What is set for each; one process steps its environments on all cores, as the reference does."""
    threads = min(len(os.sched_getaffinity(0)), config.env.num_envs)
    return {
        "one process": ("scheme=synchronous", "ranks.workers=1", f"env.num_threads={threads}"),
        "pipeline": ("scheme=pipeline",),
    }


def reference_work(config: RunConfig) -> dict[str, Any]:
    """The fields of `reference.Work`. Raises ConfigError naming a key for what the reference cannot do. Pure."""
    algorithm, model, env = config.algorithm, config.model, config.env
    if not isinstance(algorithm, SurrogateConfig):
        raise ConfigError(f"algorithm.name={algorithm.name}: the reference is PPO; use a recipe of ppo")
    if env.id not in registered_ids() or env.engine != "envpool":
        raise ConfigError(f"env.id={env.id!r} by env.engine={env.engine}: the reference steps EnvPool's")
    if algorithm.buffer[1] > 1:
        raise ConfigError(
            f"algorithm.batch_uses={algorithm.buffer[1]}: the reference trains on every batch once; set "
            "algorithm.batch_uses=1"
        )
    images = model.torso == "nature_cnn"
    wanted = {
        "torso": model.torso if images else "mlp",
        "shared_torso": images,
        "activation": "relu" if images else "tanh",
        "recurrent": "none",
    }
    for key, value in wanted.items():
        if getattr(model, key) != value:
            raise ConfigError(
                f"model.{key}={getattr(model, key)}: the reference has {value} here; set model.{key} to it"
            )
    batch = algorithm.unroll_length * env.num_envs
    if batch % algorithm.num_minibatches:
        raise ConfigError(
            f"algorithm.num_minibatches={algorithm.num_minibatches} does not divide the {batch} env_steps of an "
            "update, as the reference needs"
        )
    return {
        "num_envs": env.num_envs,
        "unroll_length": algorithm.unroll_length,
        "epochs": algorithm.epochs,
        "num_minibatches": algorithm.num_minibatches,
        "hidden_sizes": list(model.hidden_sizes),
    }


def render(result: dict[str, Any]) -> Table:
    """The result as a table."""
    table = Table(title=f"{result['recipe']}: equal work", box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("env_steps/s", "over the reference"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        name = "CleanRL-style PPO" if row["way"] == "reference" else f"hpcrl, {row['way']}"
        table.add_row(name, f"{row['env_steps_per_s']:,.0f}", f"{row['over_reference']:.2f} x")
    return table
