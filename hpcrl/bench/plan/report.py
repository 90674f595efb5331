"""A plan for people, and as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.bench.machine import machine
from hpcrl.bench.plan.check import Measured
from hpcrl.bench.plan.costs import Calibration, Cost
from hpcrl.bench.plan.model import Forecast, Place, acting_envs, learner_size, message_cost
from hpcrl.bench.plan.sizes import Sizes
from hpcrl.bench.plan.splits import to_type


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the command has to say."""

    best: Forecast
    others: tuple[Forecast, ...]
    """The next best ones."""
    needs: Sizes
    cal: Calibration
    place: Place
    findings: tuple[str, ...]
    measured: Measured | None = None
    for_what_it_got: Forecast | None = None
    """The forecast for the cores that the measured run had."""


def as_json(plan: Plan, recipe: str) -> dict[str, Any]:
    """JSON types only. Units are in the names."""
    result = {
        "recipe": recipe,
        "set": to_type(plan.best.config, plan.best.num_ranks),
        "best": _record(plan.best),
        "others": [_record(one) for one in plan.others],
        "needs": asdict(plan.needs),
        "parts": {name: asdict(cost) for name, cost in parts(plan).items()},
        "together": plan.cal.together,
        "place": asdict(plan.place),
        "findings": list(plan.findings),
        "machine": machine(),
    }
    if plan.measured is not None:
        result["measured"] = asdict(plan.measured)
        result["compared"] = [
            {
                "what": what,
                "predicted": predicted,
                "measured": seen,
                "ratio": predicted / seen if seen else None,
            }
            for what, predicted, seen, _ in compared(plan)
        ]
    return result


def parts(plan: Plan) -> dict[str, Cost]:
    """What one of each takes in the best split; of those that it has."""
    config, cal = plan.best.config, plan.cal
    envs = acting_envs(config)
    found = {
        f"environment step of {envs}": cal.environment.at(envs),
        f"inference for {envs}": cal.inference.at(envs),
        f"trajectory of {config.algorithm.unroll_length} x {envs}": cal.collect.at(envs),
    }
    if cal.gradient is not None:
        found["gradient of a trajectory"] = cal.gradient.at(envs)
    if cal.update is not None:
        found["updates of a batch"] = cal.update.at(learner_size(config))
    found["sending of a trajectory"] = cal.send
    found["publication"] = cal.publish
    found["all else, for one end of a message"] = message_cost(config, cal)
    if cal.sample is not None:
        found["insert of a trajectory"] = cal.insert
        found["sample of a batch"] = cal.sample.at(max(size for size, _ in cal.sample.points))
    if cal.waiting:
        found["a second of waiting"] = Cost(cal.waiting, 1.0)
    if cal.reduce.span_s:
        found["sum of gradients, 2 ranks"] = cal.reduce
    return found


def findings(best: Forecast, needed: Sizes, memory_bytes: int) -> list[str]:
    """What to know or change before the job, one sentence each."""
    config, found = best.config, []
    advice = {
        "actors": "the environments set the pace: more actors, or more env.num_envs for each, bring more",
        "learners": "the learners set the pace: more actors bring nothing; more learners, or fewer passes, do",
        "replay": "the replay ranks set the pace: more of them (ranks.replay) bring more",
        "workers": "every rank acts and learns in turn: more ranks bring more while there are cores for them",
        "cores": "the cores set the pace: more ranks than these bring nothing without more cores",
        "link": "the network between nodes sets the pace: fewer nodes, or smaller observations, bring more",
        "turns": "the roles wait for each other (one rank, lag.max_lag=0 or deterministic=true)",
    }
    found.append(advice[best.limit])
    if needed.node_bytes > memory_bytes:
        found.append(
            f"the ranks of a node need {needed.node_bytes / 1e9:.1f} GB; there are {memory_bytes / 1e9:.1f} GB here: "
            "use more nodes, fewer ranks, or a smaller replay.capacity"
        )
    if config.checkpoint.margin_s < needed.margin_s:
        found.append(
            f"checkpoint.margin_s={config.checkpoint.margin_s:g} is short for a round of {best.round_s:.1f} s and a "
            f"save of {needed.save_s:.1f} s; use --set checkpoint.margin_s={needed.margin_s:.0f}"
        )
    return found


def compared(plan: Plan) -> list[tuple[str, float, float, str]]:
    """(what, predicted, measured, format) of a run that was measured."""
    seen, got = plan.measured, plan.for_what_it_got
    if seen is None or got is None:
        return []
    cpu_s = got.cores_used / got.env_steps_per_s
    rows = [
        ("env_steps/s, for the cores it had", got.env_steps_per_s, seen.env_steps_per_s, ",.0f"),
        ("CPU s for 1000 env_steps", 1e3 * cpu_s, 1e3 * seen.cpu_s_per_env_step, ".3g"),
        ("mean lag, updates", got.lag_mean, seen.lag_mean, ".3g"),
    ]
    for role, nbytes in seen.resident_bytes.items():
        predicted = plan.needs.resident_bytes.get(role) or max(plan.needs.resident_bytes.values())
        rows.append((f"RAM of a rank ({role}), MB", predicted / 1e6, nbytes / 1e6, ",.0f"))
    return rows


def render(plan: Plan, recipe: str) -> RenderableType:
    """For a terminal."""
    blocks: list[RenderableType] = [_parts_table(plan), Text(), _splits_table(plan), Text()]
    blocks.append(_needs_table(plan))
    blocks += [Text(f"- {sentence}", "yellow") for sentence in plan.findings]
    if plan.measured is not None:
        blocks += [Text(), _check_table(plan, plan.measured)]
    return Group(
        *blocks, Text(), Text(f"hpcrl run {recipe} {to_type(plan.best.config, plan.best.num_ranks)}", "bold")
    )


def _parts_table(plan: Plan) -> Table:
    title = f"measured here, {plan.best.config.name}"
    if plan.best.num_ranks > 1:
        title += f"; beside other ranks {plan.cal.together:.2f} x that"
    table = _table(title, "part", "CPU ms", "ms, with sleeps")
    for name, cost in parts(plan).items():
        table.add_row(name, f"{1e3 * cost.cpu_s:.3g}", f"{1e3 * cost.span_s:.3g}")
    return table


def _splits_table(plan: Plan) -> Table:
    place = plan.place
    title = f"{plan.best.num_ranks} ranks on {place.nodes} x {place.cores_per_node:g} cores"
    table = _table(title, "ranks", "env_steps/s", "updates/s", "mean lag", "set by", "busy")
    for index, one in enumerate((plan.best, *plan.others)):
        busy = ", ".join(f"{role} {share:.0%}" for role, share in one.busy.items())
        table.add_row(
            to_type(one.config, one.num_ranks).replace("--set ranks.", ""),
            f"{one.env_steps_per_s:,.0f}",
            f"{one.updates_per_s:.3g}",
            f"{one.lag_mean:.3g}",
            one.limit,
            busy,
            style="bold" if index == 0 else None,
        )
    return table


def _needs_table(plan: Plan) -> Table:
    needed, grid = plan.needs, Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    ram = ", ".join(f"{role} {nbytes / 1e6:,.0f} MB" for role, nbytes in needed.resident_bytes.items())
    grid.add_row("RAM of a rank", f"{ram}; the fullest node {needed.node_bytes / 1e9:.2f} GB")
    grid.add_row(
        "checkpoint",
        f"{needed.checkpoint_bytes / 1e6:,.1f} MB in {needed.save_s:.1f} s; {needed.kept_bytes / 1e6:,.1f} MB stay",
    )
    grid.add_row(
        "end of a job", f"checkpoint.margin_s {needed.margin_s:g} s, signal {needed.signal_lead_s} s before"
    )
    budget = plan.best.config.budget.env_steps
    grid.add_row(
        "cost", f"{needed.node_hours:.3g} node-hours ({needed.hours:.3g} h) for {budget:,} env_steps"
    )
    return grid


def _check_table(plan: Plan, seen: Measured) -> Table:
    title = f"run for {seen.seconds:.0f} s; it had {seen.cores:.2f} of {plan.place.cores_per_node:g} cores"
    table = _table(title, "", "predicted", "measured", "predicted/measured")
    for what, predicted, measured, form in compared(plan):
        ratio = f"{predicted / measured:.2f}" if measured else ""
        table.add_row(what, format(predicted, form), format(measured, form), ratio)
    return table


def _record(one: Forecast) -> dict[str, Any]:
    found = asdict(one)
    del found["config"]
    return found | {"ranks": one.config.ranks.to_dict(), "world_size": one.num_ranks}


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 or name in ("set by", "busy") else "right")
    return table
