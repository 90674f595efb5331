"""The parts of a run, measured on this machine in processes of their own: tens of seconds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from hpcrl.bench.child import call
from hpcrl.bench.mpi.ranks import start_ranks
from hpcrl.bench.plan.check import Measured as Seen
from hpcrl.bench.plan.check import run_for
from hpcrl.bench.plan.costs import Calibration, Cost, Line, median_cost
from hpcrl.bench.plan.model import Place, acting_envs, forecast
from hpcrl.bench.plan.splits import smallest_world, splits
from hpcrl.comm.ranks import resize
from hpcrl.config import ConfigError, EnvConfig, ImpalaConfig, OffPolicyConfig, RunConfig

Measured = dict[str, Any]

_SLEEP_S = 0.1
"""Of an env_step, beside which what it computes is next to nothing."""
_LEAST_WAITING_S = 3.0
_LEAST_TOGETHER_S = 4.0


@dataclass(frozen=True, slots=True)
class Rounds:
    """What was measured, once in each round."""

    parts: tuple[Measured, ...] = ()
    wholes: tuple[Measured, ...] = ()
    sums: tuple[Measured, ...] = ()
    """Empty where no split sums gradients."""
    together: tuple[Seen, ...] = ()
    """The run on the fewest ranks on which no role shares one; empty for one rank, as the next."""
    waiting: tuple[float, ...] = ()

    def __add__(self, other: Rounds) -> Rounds:
        return Rounds(
            self.parts + other.parts,
            self.wholes + other.wholes,
            self.sums + other.sums,
            self.together + other.together,
            self.waiting + other.waiting,
        )


def measure_rounds(candidates: Sequence[RunConfig], num_ranks: int, rounds: int, seconds: float) -> Rounds:
    """What any of these splits of one recipe needs, each on so many ranks.

    In every round one process measures the parts in turn while another one runs the whole recipe on one rank, so that
    two cores work, as they do in a run; then two ranks sum gradients, where a split does; then, for several ranks,
    the fewest on which roles do not share one run the recipe. In the end what waiting takes.

    Raises RuntimeError with the end of its output where a measurement fails.
    """
    one, few = resize(candidates[0], 1), fewest(candidates[0])
    acting, learning = _sizes(candidates)
    summing = any(config.ranks.learners > 1 or config.ranks.workers > 1 for config in candidates)
    found = Rounds()
    for _ in range(rounds):
        with ThreadPoolExecutor(2) as pool:
            request: Measured = {
                "acting": [run.to_dict() for run in acting],
                "learning": [run.to_dict() for run in learning],
                "seconds": seconds,
                "threads": 1,
            }
            together = [
                pool.submit(call, "hpcrl.bench.plan.parts:measure_parts", request, one_core=False),
                pool.submit(
                    call,
                    "hpcrl.bench.plan.whole:measure_whole",
                    {"config": one.to_dict(), "seconds": 5 * seconds},
                    one_core=False,
                ),
            ]
            part, whole = (future.result() for future in together)
        found += Rounds((part,), (whole,))
        if summing:
            nbytes = max(4, int(whole["parameters_bytes"]))
            found += Rounds(
                sums=(start_ranks("hpcrl.bench.plan.reduction:measure_sums", {"nbytes": nbytes}, 2),)
            )
        if num_ranks > 1:
            seen = run_for(few, few.world_size, max(_LEAST_TOGETHER_S, 5 * seconds))
            found += Rounds(together=(seen,))
    if num_ranks == 1:
        return found
    return found + Rounds(waiting=(measure_waiting(max(_LEAST_WAITING_S, 5 * seconds)),))


def calibration(candidates: Sequence[RunConfig], rounds: Rounds) -> Calibration:
    """The medians of what `measure_rounds` has found for the same candidates. Pure."""
    one, few = resize(candidates[0], 1), fewest(candidates[0])
    found = combine(one, *_sizes(candidates), rounds.parts, rounds.wholes, rounds.sums)
    found = replace(found, waiting=statistics.median(rounds.waiting or (0.0,)))
    if not rounds.together:
        return found
    factors = [
        forecast(few, found, Place(1, seen.cores)).env_steps_per_s / seen.env_steps_per_s
        for seen in rounds.together
    ]
    return replace(found, together=statistics.median(factors))


def fewest(config: RunConfig) -> RunConfig:
    """The run on the fewest ranks, of several, on which no rank has two roles; itself where it needs more. Pure."""
    try:
        return splits(config, 2 if config.scheme == "synchronous" else smallest_world(config))[0]
    except ConfigError:
        return config


def measure_waiting(seconds: float) -> float:
    """The share of a core that a rank takes while it waits: it polls, and its parent watches over it.

    Of a run of three ranks whose environment does nothing but sleep. Starts processes; Local.
    """
    run = RunConfig(
        name="waiting",
        env=EnvConfig(id="chain", engine="toy", num_envs=1, kwargs={"seconds_per_step": _SLEEP_S}),
        algorithm=ImpalaConfig(unroll_length=4),
    )
    seen = run_for(run, run.world_size, seconds)
    return seen.cpu_s_per_env_step * seen.env_steps_per_s / run.world_size


def learner_share(config: RunConfig) -> float:
    """A learner's share of a batch, as `measure_parts` makes it: columns of environments, or samples."""
    learners = config.ranks.workers if config.scheme == "synchronous" else config.ranks.learners
    if isinstance(config.algorithm, OffPolicyConfig):
        return max(1, config.algorithm.batch_size // learners)
    envs = max(1, config.env.num_envs // config.num_acting_ranks)
    return max(1, config.batch_trajectories // learners) * envs


def combine(
    one: RunConfig,
    acting: Sequence[RunConfig],
    learning: Sequence[RunConfig],
    parts: Sequence[Measured],
    wholes: Sequence[Measured],
    sums: Sequence[Measured],
) -> Calibration:
    """The medians of rounds. Pure."""

    def line(kind: str, name: str, runs: Sequence[RunConfig], size: Any) -> Line | None:
        found = [
            (float(size(run)), median_cost([part[kind][index][name] for part in parts]))
            for index, run in enumerate(runs)
            if all(name in part[kind][index] for part in parts)
        ]
        return Line(tuple(found)) if found else None

    unroll_length = one.algorithm.unroll_length
    inference, collect = (
        line("acting", "inference", acting, acting_envs),
        line("acting", "collect", acting, acting_envs),
    )
    if inference is None or collect is None:
        raise RuntimeError("the measurement of an acting rank gave nothing")
    environment = line("acting", "environment", acting, acting_envs)
    if environment is None:  # of masked actions: all that is not inference
        environment = Line(
            tuple(
                (size, cost.less(inference.at(size) * unroll_length) * (1 / unroll_length))
                for size, cost in collect.points
            )
        )
    memory = [part["memory"] for part in parts]
    sample = None
    if memory[0] and isinstance(one.algorithm, OffPolicyConfig):
        batch = one.algorithm.batch_size
        points = {max(1, batch // 4): "sample_few", batch: "sample"}
        sample = Line(
            tuple((float(size), median_cost([one[name] for one in memory])) for size, name in points.items())
        )
    uses = one.algorithm.buffer[1]

    def median(name: str) -> float:
        return statistics.median(float(whole[name]) for whole in wholes)

    whole_s = median("cpu_s") * uses
    return Calibration(
        environment=environment,
        inference=inference,
        collect=collect,
        gradient=line("acting", "gradient", acting, acting_envs),
        update=line("learning", "update", learning, learner_share),
        sums_per_batch=int(parts[0]["sums"]) or uses,
        insert=median_cost([one["insert"] for one in memory]) if memory[0] else Cost(),
        sample=sample,
        whole=Cost(whole_s, whole_s),
        publish=_hop(wholes, "publisher.publish"),
        send=_hop(wholes, "stream.send"),
        reduce=median_cost([one["reduce"] for one in sums]) if sums else Cost(),
        agree=median_cost([one["agree"] for one in sums]) if sums else Cost(),
        valid_fraction=median("valid_fraction"),
        start_s=median("start_s"),
        save_s=median("stop_s"),
        bytes=_bytes(wholes),
    )


def _sizes(candidates: Sequence[RunConfig]) -> tuple[list[RunConfig], list[RunConfig]]:
    """Runs whose acting ranks, and those whose learners, have the different sizes that are measured."""
    one, runs = resize(candidates[0], 1), [*candidates, fewest(candidates[0])]
    return _different(one, runs, acting_envs), _different(one, runs, learner_share)


def _different(one: RunConfig, candidates: Sequence[RunConfig], size: Any) -> list[RunConfig]:
    """The run on one rank, and those with the smallest and largest size that is another."""
    by_size = {size(config): config for config in candidates} | {size(one): one}
    return [by_size[chosen] for chosen in dict.fromkeys([size(one), min(by_size), max(by_size)])]


def _hop(wholes: Sequence[Measured], name: str) -> Cost:
    """Of one update. Timers count what the machine took away, so it is scaled to what the process computed."""
    seconds = statistics.median(
        whole["hops"].get(name, 0.0) * min(1.0, whole["cpu_s"] / whole["wall_s"]) for whole in wholes
    )
    return Cost(seconds, seconds)


def _bytes(wholes: Sequence[Measured]) -> dict[str, float]:
    last = wholes[-1]
    found = {name: float(last[name]) for name in ("parameters_bytes", "trajectory_bytes", "replay_bytes")}
    found |= {f"resident/{name}": float(last["resident"][name]) for name in last["resident"]}
    for part, nbytes in last["checkpoint_bytes"].items():
        role = part.rpartition("-")[0] or part
        found[f"checkpoint/{role}"] = found.get(f"checkpoint/{role}", 0.0) + nbytes
    return found
