"""What the ranks of a run compute, part by part, in one process of its own: functions for `child.call`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hpcrl.algorithms import LocalReducer
from hpcrl.algorithms.base import Batch, Vector
from hpcrl.bench.ceilings import Rollout, update_work
from hpcrl.bench.plan.clocks import Clock, read_clock
from hpcrl.config import RunConfig
from hpcrl.data.trajectory import Trajectory, TrajectoryLayout
from hpcrl.launch.needs import env_threads
from hpcrl.launch.threads import set_torch_threads
from hpcrl.roles.arenas import batch_spec
from hpcrl.roles.memory_state import empty_memory, off_policy

Works = dict[str, Callable[[], object]]

SLICES = 20
"""Into which the time of each part is cut; they take turns, as in a run, which leaves none its caches; and a machine
whose speed drifts is the same for all."""
_PATIENCE = 4
"""A part that sleeps, or gets no core, is left after so many times the seconds it should compute for."""


def measure_parts(
    acting: Sequence[dict[str, Any]], learning: Sequence[dict[str, Any]], seconds: float, threads: int
) -> dict[str, Any]:
    """Every part of one acting rank and one learner, for each of some configurations that differ in their ranks.

    Returns {"acting": [...], "learning": [...], "memory": {...}, "sums"}: a dict of parts for each
    configuration, part -> {"cpu_s", "span_s"} of one call. Acting: `environment` and `inference` of one step of the
    rank's environments, `collect` of a trajectory, `gradient` where actors send that. Learning: `update`, all updates
    of one batch that is new. memory: `insert` of a trajectory, `sample` of a batch and of a quarter of it. sums:
    gradients that an update sums. Trajectories are not sent anywhere.
    """
    set_torch_threads(threads)
    runs = [RunConfig.parse(config) for config in acting]
    works: Works = {}
    for index, run in enumerate(runs):
        works |= {f"acting/{index}/{name}": work for name, work in acting_works(run).items()}
    sums = CountedSums()
    learners = [RunConfig.parse(config) for config in learning]
    for index, run in enumerate(learners):
        if not run.algorithm.sends_gradients:
            works[f"learning/{index}/update"] = learning_work(run, sums if index == 0 else LocalReducer())
    if learners and learners[0].algorithm.uses_replay:
        works |= {f"memory/0/{name}": work for name, work in memory_works(learners[0]).items()}
    found: dict[str, Any] = {
        "acting": [{} for _ in runs],
        "learning": [{} for _ in learners],
        "memory": [{}],
        "sums": sums.per_call(works["learning/0/update"]) if "learning/0/update" in works else 0,
    }
    parallel = max([1, *(env_threads(run) for run in runs)])
    for name, cost in timed(works, seconds).items():
        kind, number, part = name.split("/")
        # nothing but environments sleeps; waits of threads that wait at the same time are counted more than once
        span_s = cost["cpu_s"] / (parallel if kind == "acting" else threads)
        if part in ("environment", "collect"):
            span_s = max(span_s, cost["span_s"])
        found[kind][int(number)][part] = cost | {"span_s": span_s}
    return found | {"memory": found["memory"][0]}


class CountedSums(LocalReducer):
    """Counts the gradients that are summed."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def finish(self, extras: Sequence[float] = ()) -> Vector:
        """As LocalReducer.finish."""
        self._count += 1
        return super().finish(extras)

    def per_call(self, work: Callable[[], object]) -> int:
        """Gradients that one call of `work` sums."""
        before = self._count
        work()
        return self._count - before


def acting_works(run: RunConfig) -> Works:
    """What an acting rank of this run does with its share of the environments."""
    rollout = Rollout(run)
    rollout.fill()
    obs, rng = rollout.fields["obs"][0].copy(), np.random.default_rng(0)
    actions = rollout.algorithm.to_env(rollout.fields["action"][0])

    def step() -> None:
        rollout.env.send(actions)
        rollout.env.recv()

    def collect() -> None:
        rollout.fill()
        if run.gives_priorities:
            rollout.algorithm.first_priorities(rollout.fields)

    def gradient() -> None:
        rollout.algorithm.gradient({name: torch.from_numpy(array) for name, array in rollout.fields.items()})

    works: Works = {"inference": lambda: rollout.act(obs, rng), "collect": collect}
    if not rollout.env.spec.mask_size:  # whose actions another observation may not allow
        works["environment"] = step
    if run.algorithm.sends_gradients:
        works["gradient"] = gradient
    return works


def learning_work(run: RunConfig, reducer: LocalReducer) -> Callable[[], object]:
    """What a learner of this run does with its share of a batch that is new."""
    if not run.algorithm.uses_replay:
        return update_work(run, reducer)[0]
    positions = max(1, off_policy(run).batch_size // run.ranks.learners)
    rollout, memory, _ = _filled(run)
    layout = TrajectoryLayout(batch_spec(run, rollout.env.spec, rollout.spec, positions))
    part = _begin(layout, positions)
    memory.gather(memory.sample(positions), part, slice(0, positions))
    tensors = {name: torch.from_numpy(array) for name, array in part.fields.items()}

    def update() -> None:
        batch = Batch(fields=tensors, column_offset=0, total_columns=positions, update=0)
        rollout.algorithm.update(batch, reducer, 0.0)

    return update


def memory_works(run: RunConfig) -> Works:
    """What a replay rank does with all trajectories and batches of this run, of one actor."""
    rollout, memory, trajectory = _filled(run)
    batch = off_policy(run).batch_size
    few = max(1, batch // 4)
    layouts = {
        count: TrajectoryLayout(batch_spec(run, rollout.env.spec, rollout.spec, count))
        for count in (few, batch)
    }
    rows = {count: layout.allocate(1)[0] for count, layout in layouts.items()}

    def sample(count: int) -> None:
        part = _begin(layouts[count], count, rows[count])
        memory.gather(memory.sample(count, run.replay.beta), part, slice(0, count))

    return {
        "insert": lambda: memory.insert(trajectory),
        "sample": lambda: sample(batch),
        "sample_few": lambda: sample(few),
    }


def _filled(run: RunConfig) -> tuple[Rollout, Any, Trajectory]:
    """Environments, a replay memory that can be drawn from, and a trajectory as they come to it."""
    rollout = Rollout(run)
    layout = TrajectoryLayout(rollout.spec)
    memory = empty_memory(run, rollout.spec, 0, np.random.default_rng(0))
    trajectory = _begin(layout, rollout.env.num_envs)
    algorithm = off_policy(run)
    looks = max(algorithm.steps_ahead, algorithm.sequence_steps)
    for _ in range(2 + -(-looks // algorithm.unroll_length)):
        rollout.fill()
        for name, array in rollout.fields.items():
            trajectory.fields[name][...] = array
        if run.gives_priorities:
            trajectory.fields["priority"][...] = rollout.algorithm.first_priorities(rollout.fields)
        trajectory.seal(checksum=False)
        memory.insert(trajectory)
    return rollout, memory, trajectory


def _begin(layout: TrajectoryLayout, columns: int, row: Any = None) -> Trajectory:
    row = layout.allocate(1)[0] if row is None else row
    return layout.begin(row, attempt=1, version=0, actor=0, grant=0, envs=range(columns))


def timed(works: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, dict[str, float]]:
    """Call each for about `seconds` of computing, in turns; {"cpu_s", "span_s"} of each, of one call."""
    totals = {name: [0.0, 0.0, 0] for name in works}
    for work in works.values():
        work()
        work()
    for _ in range(SLICES):
        for name, work in works.items():
            clock, calls = _slice(work, seconds / SLICES)
            total = totals[name]
            totals[name] = [total[0] + clock.cpu_s, total[1] + clock.span_s, total[2] + calls]
    return {
        name: {"cpu_s": cpu_s / calls, "span_s": span_s / calls}
        for name, (cpu_s, span_s, calls) in totals.items()
    }


def _slice(work: Callable[[], object], seconds: float) -> tuple[Clock, int]:
    before, calls = read_clock(os.getpid()), 0
    busy, start = time.process_time(), time.perf_counter()
    while calls == 0 or (
        time.process_time() - busy < seconds and time.perf_counter() - start < _PATIENCE * seconds
    ):
        work()
        calls += 1
    return read_clock(os.getpid()) - before, calls
