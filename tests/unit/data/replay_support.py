"""Environments whose every number says where it is from, and the transitions that are in them, found slowly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcrl.config import ReplayConfig
from hpcrl.data.replay import AnyMemory, make_replay_memory
from hpcrl.data.replay_memory import ReplayLayout, Sample
from hpcrl.data.specs import (
    ActionSpec,
    ArraySpec,
    EnvSpec,
    Field,
    sequence_spec,
    trajectory_spec,
    transition_spec,
)
from hpcrl.data.trajectory import Trajectory, TrajectoryLayout

STATE = Field(name="initial_state", dtype="float32", shape=(2,), start_only=True)


def env_spec(shape: tuple[int, ...] = (3,), dtype: str = "float32") -> EnvSpec:
    return EnvSpec(
        id="made-up",
        observation=ArraySpec(shape=shape, dtype=dtype),
        action=ActionSpec(kind="discrete", size=1000),
    )


@dataclass
class Column:
    """One environment: its env_steps ever, in next-step-reset form, and the observation after them."""

    env: int
    steps: list[dict[str, Any]] = field(default_factory=list)
    obs: Any = None


class Envs:
    """Makes trajectories of some environments, and remembers all of it.

    end_share: chance of an env_step to end its episode. frames: observations are stacks of so many frames, whose first
    one is made as `first` says.
    """

    def __init__(
        self,
        envs: range,
        *,
        unroll: int = 4,
        shape: tuple[int, ...] = (3,),
        dtype: str = "float32",
        end_share: float = 0.2,
        frames: int = 0,
        first: str = "copies",
        extra: tuple[Field, ...] = (),
        wide: int = 0,
        seed: int = 0,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.env = env_spec((frames, *shape) if frames else shape, dtype)
        self.frames, self.first, self.end_share = frames, first, end_share
        self.spec = trajectory_spec(self.env, unroll, wide or len(envs), extra)
        self.layout = TrajectoryLayout(self.spec)
        self.envs = envs
        self.columns = {env: Column(env) for env in envs}
        self._frame = 0
        for column in self.columns.values():
            column.obs = self._first_obs()

    def trajectory(self, envs: range | None = None, version: int = 0) -> Trajectory:
        """unroll_length env_steps of the environments."""
        envs = self.envs if envs is None else envs
        buffer = self.layout.allocate(1, poison=True)[0]
        out = self.layout.begin(buffer, attempt=0, version=version, actor=0, grant=0, envs=envs)
        for place, env in enumerate(envs):
            column = self.columns[env]
            for t in range(self.spec.unroll_length):
                step = self._step(column, t)
                for name in out.fields:
                    if name in step and not (name == "initial_state" and t):
                        out.fields[name][t, place] = step[name]
                out.fields["parameter_version"][t, place] = step["parameter_version"] = version
            out.fields["obs"][-1, place] = column.obs
        return out

    def lose(self, env: int, steps: int) -> None:
        """Env_steps that nobody sees."""
        column = self.columns[env]
        for t in range(steps):
            self._step(column, t)
        del column.steps[-steps:]
        if column.steps and column.steps[-1]["valid"] and not _ends(column.steps[-1]):
            column.steps[-1]["truncated"] = True
        column.steps.append({"valid": False, "gap": True})

    def _step(self, column: Column, t: int) -> dict[str, Any]:
        steps = column.steps
        reset = bool(steps) and not steps[-1].get("gap") and steps[-1]["valid"] and _ends(steps[-1])
        end = not reset and self.rng.random() < self.end_share
        kind = self.rng.integers(3) if end else 9
        step = {
            "obs": column.obs,
            "action": int(self.rng.integers(1000)),
            "reward": 0.0 if reset else float(np.float32(self.rng.normal())),
            "terminated": kind in (0, 2),
            "truncated": kind in (1, 2),
            "valid": not reset,
            "priority": float(np.float32(self.rng.uniform(0, 5))),
            "initial_state": self.rng.normal(size=2).astype(np.float32),
            "start": t == 0,
        }
        column.obs = self._first_obs() if reset else self._next_obs(column.obs)
        step["after"] = column.obs
        steps.append(step)
        return step

    def _new_frame(self) -> Any:
        self._frame += 1
        shape = self.env.observation.shape[1 if self.frames else 0 :]
        if self.env.observation.dtype == "uint8":
            return self.rng.integers(1, 255, shape).astype(np.uint8)
        return np.full(shape, self._frame, self.env.observation.dtype)

    def _next_obs(self, obs: Any) -> Any:
        new = self._new_frame()
        return np.concatenate([obs[1:], new[None]]) if self.frames else new

    def _first_obs(self) -> Any:
        new = self._new_frame()
        if not self.frames:
            return new
        how = self.rng.choice(["copies", "zeros", "odd"]) if self.first == "any" else self.first
        stack = np.repeat(new[None], self.frames, axis=0)
        if how == "zeros":
            stack[:-1] = 0
        if how == "odd":
            stack[:-1] = [self._new_frame() for _ in range(self.frames - 1)]
        return stack


def _ends(step: dict[str, Any]) -> bool:
    return bool(step["terminated"] or step["truncated"])


def transition(column: Column, index: int, n: int, gamma: float) -> dict[str, Any] | None:
    """The n-step transition that begins at an env_step; None where it is not valid or not complete."""
    steps = column.steps
    if not steps[index]["valid"]:
        return None
    reward, m = 0.0, 0
    while m < n:
        if index + m == len(steps):
            return None
        step = steps[index + m]
        reward += gamma**m * step["reward"]
        m += 1
        if _ends(step):
            break
    last = steps[index + m - 1]
    return {
        "obs": steps[index]["obs"],
        "action": steps[index]["action"],
        "parameter_version": steps[index]["parameter_version"],
        "reward": reward,
        "discount": 0.0 if last["terminated"] else gamma**m,
        "next_obs": last["after"],
    }


def make_memory(
    envs: Envs,
    *,
    capacity: int,
    columns: range | None = None,
    seed: int = 0,
    config: dict[str, Any] | None = None,
    n: int = 1,
    length: int = 0,
    **options: Any,
) -> Any:
    columns = envs.envs if columns is None else columns
    layout = ReplayLayout(
        spec=envs.spec,
        num_columns=len(columns),
        capacity=capacity,
        steps_ahead=n,
        sequence_steps=length,
    )
    settings = ReplayConfig(capacity=capacity, **(config or {}))
    options.setdefault("gamma", 0.9)
    return make_replay_memory(layout, settings, columns, np.random.default_rng(seed), **options)


def gathered(memory: AnyMemory, sample: Sample, envs: Envs, stored: tuple[Field, ...] = ()) -> dict[str, Any]:
    """What a learner would get of it."""
    count, length = len(sample.slots), memory.layout.sequence_steps
    spec = (
        sequence_spec(envs.env, length, count + 2, stored) if length else transition_spec(envs.env, count + 2)
    )
    layout = TrajectoryLayout(spec)
    out = layout.view(layout.allocate(1, poison=True)[0])
    memory.gather(sample, out, slice(1, count + 1))
    return {name: array[:, 1:-1] if length else array[0, 1:-1] for name, array in out.fields.items()}


def everything(memory: AnyMemory) -> Sample:
    """Each entry once, as if it had been drawn."""
    slots = np.flatnonzero(memory.tree.leaves)
    kept = getattr(memory, "kept", None)
    generations = memory.rings.generations(slots) if kept is None else kept["generation"][slots]
    return Sample(slots, generations, np.ones(len(slots), np.float32))


def ring_rows(column: Column, unroll: int) -> list[dict[str, Any]]:
    """The env_steps of a column as they lie in its ring: lost ones stand as a block."""
    rows: list[dict[str, Any]] = []
    for step in column.steps:
        rows += [step] * (unroll if step.get("gap") else 1)
    return rows


def sequences(
    column: Column, unroll: int, length: int, live: int, cross: bool
) -> dict[int, list[dict[str, Any]]]:
    """Every sequence that can be drawn, by the generation it begins at; `counts`: whether an env_step is valid."""
    rows = ring_rows(column, unroll)
    found = {}
    for start in range(max(len(rows) - live, 0), len(rows) - length + 1):
        first = rows[start]
        if first.get("gap") or not (start % unroll == 0 or (not cross and not first["valid"])):
            continue
        cut, sequence = False, []
        for row in rows[start : start + length]:
            cut = cut or bool(row.get("gap"))
            sequence.append({**row, "counts": row["valid"] and not cut, "cut": cut})
            cut = cut or (not cross and not row.get("gap") and _ends(row))
        if any(row["counts"] for row in sequence):
            found[start] = sequence
    return found
