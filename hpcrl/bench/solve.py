"""`hpcrl bench solve`: how long a recipe takes to solve its task, beside the reference on the same environments.

Solved is the first check in which the greedy policy's mean over the evaluation episodes reaches a score. Checks do not
count as time. Both run in processes of their own on one core, the recipe as one rank without MPI and result files.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

from hpcrl.algorithms import frozen_policy
from hpcrl.bench.ceilings import Rollout
from hpcrl.bench.child import call
from hpcrl.bench.engines import reference_network
from hpcrl.bench.machine import machine
from hpcrl.bench.reference import Agent, run_reference
from hpcrl.config import ConfigError, RunConfig
from hpcrl.envs import Obs, evaluate_policy
from hpcrl.envs.base import Actions, Bools
from hpcrl.envs.from_envpool import registered_ids

Solved = dict[str, Any]
Act = Callable[[Obs, Bools], Actions]
CONTESTANTS = {"hpcrl": "hpcrl.bench.solve:recipe_solves", "reference": "hpcrl.bench.solve:reference_solves"}


def bench_solve(
    config: RunConfig, score: float, rounds: int, *, every: int, reference_env_steps: int
) -> dict[str, Any]:
    """Solve with `rounds` seeds in turn, from the recipe's own on, by the recipe and by the reference.

    Args:
        config: A synchronous run of one rank; its budget bounds the recipe's env_steps.
        score: Mean greedy return that counts as solved.
        rounds: How many seeds.
        every: env_steps between two checks, rounded up to whole updates.
        reference_env_steps: Budget of the reference.

    Returns:
        JSON types only: `rows`, one per contestant and seed: `who`, `seed`, `solved`, `score` of the last check,
        `env_steps`, `seconds` from the first env_step, `seconds_with_start` from the start of the process, both without
        the checks; `medians` by contestant; `ratios`, of the medians, None unless all were solved; `machine`.

    Raises:
        ConfigError: no rounds, not one rank, what one rank by itself does not do, or not one of EnvPool's environments.
    """
    if rounds < 1:
        raise ConfigError(f"rounds={rounds} measures nothing; use 1 or more, 3 or more for a median")
    if config.scheme != "synchronous" or config.world_size > 1:
        raise ConfigError(
            f"bench solve runs one rank that acts and learns, not scheme={config.scheme} on {config.world_size}; "
            "use a recipe with scheme=synchronous and ranks.workers=1"
        )
    if config.env.engine != "envpool" or config.env.id not in registered_ids():
        raise ConfigError(
            f"env.engine={config.env.engine}, env.id={config.env.id!r}: the reference runs on EnvPool; "
            "use env.engine=envpool and an env.id that it has"
        )
    batches, uses = config.algorithm.buffer
    for key, value, allowed in (
        ("lag.injection", config.lag.injection, 0),
        ("algorithm.buffer_batches", batches if uses > 1 else 1, 1),
    ):
        if value != allowed:
            raise ConfigError(
                f"{key}={value}: bench solve trains on every batch as it comes; use {key}={allowed}"
            )
    rows = []
    for seed in range(config.seed, config.seed + rounds):
        for who, function in CONTESTANTS.items():
            values = {**config.to_dict(), "seed": seed}
            if who == "reference":
                values["budget"] = {"env_steps": reference_env_steps}
            arguments = {"config": values, "score": score, "every": every, "launched": perf_counter()}
            rows.append({"who": who, "seed": seed, **call(function, arguments, one_core=True)})
    return {**summarize(rows), "recipe": config.name, "target": score, "machine": machine()}


def summarize(rows: list[Solved]) -> dict[str, Any]:
    """Medians and ratios of the rows. Pure."""
    names = ("env_steps", "seconds", "seconds_with_start")
    medians = {
        who: {name: statistics.median(row[name] for row in rows if row["who"] == who) for name in names}
        for who in CONTESTANTS
    }
    ratios = None
    if all(row["solved"] for row in rows):
        ratios = {name: medians["reference"][name] / medians["hpcrl"][name] for name in names}
    return {"rows": rows, "medians": medians, "ratios": ratios}


def render(result: dict[str, Any]) -> Table:
    """The result of `bench_solve` as a table."""
    table = Table(title=f"{result['recipe']}: until {result['target']:g}", box=None, padding=(0, 2, 0, 0))
    for name in ("", "seed", "score", "env_steps", "s", "s with start"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        score = f"{row['score']:.1f}{'' if row['solved'] else ' (not solved)'}"
        times = (f"{row['seconds']:.2f}", f"{row['seconds_with_start']:.2f}")
        table.add_row(row["who"], str(row["seed"]), score, f"{row['env_steps']:,}", *times)
    if result["ratios"] is not None:
        ratios = [f"{ratio:.1f} x" for ratio in result["ratios"].values()]
        table.add_row("reference / hpcrl", "medians", "", *ratios)
    return table


class Checks:
    """The greedy policy's score every so many env_steps, and a clock that stands still meanwhile.

    The clock is perf_counter(), which all processes of a machine share on Linux.
    """

    def __init__(self, config: RunConfig, score: float, every: int, launched: float) -> None:
        self._config, self._target, self._every = config, score, every
        self._launched = launched
        self._next = every
        self._checking_s = self._began = 0.0
        self.result: Solved = {}

    def begin(self) -> None:
        """The first env_step is next."""
        self._began = perf_counter()

    def solved(self, env_steps: int, act: Act, last: bool) -> bool:
        """Check, if it is time to or this is the `last` call; whether the score was reached."""
        if env_steps < self._next and not last:
            return False
        self._next = env_steps + self._every
        now = perf_counter()
        results = evaluate_policy(self._config.env, self._config.evaluation, act)
        returns = [result.episode_return for result in results]
        self.result = {
            "score": float(np.mean(returns)),
            "solved": bool(np.mean(returns) >= self._target),
            "env_steps": env_steps,
            "seconds": now - self._began - self._checking_s,
            "seconds_with_start": now - self._launched - self._checking_s,
        }
        self._checking_s += perf_counter() - now
        return bool(self.result["solved"])


def recipe_solves(config: dict[str, Any], score: float, every: int, launched: float) -> Solved:
    """Train until solved or the budget is used. `launched`: perf_counter() at the start of the process."""
    run = RunConfig.parse(config)
    checks = Checks(run, score, every, launched)
    rollout = Rollout(run)
    settings = run.evaluation
    env_steps = 0
    ended = False
    checks.begin()
    while not ended:
        rollout.fill()
        rollout.learn(rollout.fields, min(env_steps / run.budget.env_steps, 1.0))
        env_steps += int(rollout.fields["valid"].sum())
        last = env_steps >= run.budget.env_steps
        policy = frozen_policy(rollout.algorithm, settings.episodes, settings.seed, greedy=True)
        ended = checks.solved(env_steps, policy, last) or last
    return checks.result


def reference_solves(config: dict[str, Any], score: float, every: int, launched: float) -> Solved:
    """As `recipe_solves`, by the reference, of which `config` gives environment, budget and seed."""
    run = RunConfig.parse(config)
    checks = Checks(run, score, every, launched)

    def watch(agent: Agent, env_steps: int) -> bool:
        if env_steps == 0:
            checks.begin()
            return False
        return checks.solved(
            env_steps, lambda obs, begins: agent.greedy(obs), last=env_steps >= run.budget.env_steps
        )

    network = reference_network(run.model.torso)
    run_reference(run.env.id, run.budget.env_steps, run.seed, network, watch=watch)
    return checks.result
