"""`hpcrl bench scale`: the same run with more and more actors, end to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from hpcrl.config import ConfigError, RunConfig


def bench_scale(
    config: RunConfig, actors: Sequence[int], rounds: int, measure: Callable[[RunConfig], dict[str, Any]]
) -> dict[str, Any]:
    """env_steps/s of whole runs, learning on, for each number of actors in turn; medians over the rounds.

    Every actor keeps its number of environments and its share of the budget, so that each run takes about the time that
    one with perfect scaling would. Raises ConfigError when there is nothing to compare.
    """
    if config.scheme != "pipeline":
        raise ConfigError("bench scale adds actors: it needs scheme=pipeline")
    if len(set(actors)) < 2 or min(actors) < 1:
        raise ConfigError(f"actors={list(actors)}: give at least two different numbers of actors")
    counts = sorted(set(actors))
    speeds: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            speeds[count].append(measure(with_actors(config, count))["env_steps_per_s"])
    median = {count: sorted(found)[len(found) // 2] for count, found in speeds.items()}
    first = counts[0]
    rows = [
        {
            "actors": count,
            "env_steps_per_s": median[count],
            "growth": median[count] / median[first],
            "efficiency": median[count] / median[first] * first / count,
        }
        for count in counts
    ]
    return {"recipe": config.name, "rounds": rounds, "rows": rows}


def with_actors(config: RunConfig, count: int) -> RunConfig:
    """The run with `count` actors, as many environments per actor and env_steps per actor as before. Pure."""
    before = config.ranks.actors
    values = config.to_dict()
    values["ranks"]["actors"] = count
    values["env"]["num_envs"] = max(count * config.env.num_envs // before, count * config.env.num_groups)
    values["budget"]["env_steps"] = max(config.budget.env_steps * count // before, 1)
    return config.parse(values)


def render(result: dict[str, Any]) -> Table:
    """The result as a table."""
    table = Table(title=f"{result['recipe']}: more actors", box=None, padding=(0, 2, 0, 0))
    for name in ("actors", "env_steps/s", "growth", "efficiency"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        table.add_row(
            str(row["actors"]),
            f"{row['env_steps_per_s']:,.0f}",
            f"{row['growth']:.2f} x",
            f"{row['efficiency']:.0%}",
        )
    return table
