"""A prioritized replay memory beside those of cpprb and tianshou: contestants that do the same work.

A move adds 256 env_steps of 32 environments, draws 256 transitions of all that is held, with next observations and
importance weights, and gives back as many priorities. Peers that are not installed (extra `bench`) are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcrl.config import ReplayConfig
from hpcrl.data.replay_memory import ReplayLayout, ReplayMemory
from hpcrl.data.specs import (
    ActionSpec,
    ArraySpec,
    EnvSpec,
    TrajectorySpec,
    trajectory_spec,
    transition_spec,
)
from hpcrl.data.trajectory import Trajectory, TrajectoryLayout

ENVS, STEPS, BATCH = 32, 8, 256
ALPHA, BETA = 0.6, 0.4
PEERS = ("cpprb", "tianshou")

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What the observations are."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    capacity: int
    frames: int = 0
    """Of a stack, along the first axis, each to be stored once; 0: observations are stored whole."""


KINDS = (
    Kind("4 floats", (4,), "float32", 100_000),
    Kind("84x84x4", (4, 84, 84), "uint8", 8_192),
    Kind("84x84x4 by frames", (4, 84, 84), "uint8", 8_192, 4),
)


class Contestant(Protocol):
    """A full memory."""

    def move(self) -> None:
        """Add, draw, give back."""


class Data:
    """What all contestants add: consecutive env_steps, of which no episode ends, the same again each time."""

    def __init__(self, kind: Kind) -> None:
        rng = np.random.default_rng(0)
        shape = (STEPS + 1, ENVS, *kind.shape)
        if kind.frames:
            frames = rng.integers(0, 255, (STEPS, ENVS, *kind.shape[1:])).astype(kind.dtype)
            # the last frames are the first ones again, so that the stacks, too, go on when it follows itself
            places = (np.arange(STEPS + 1)[:, None] + np.arange(kind.frames)) % STEPS
            self.obs = np.ascontiguousarray(frames[places].swapaxes(1, 2))
        elif kind.dtype == "uint8":
            self.obs = rng.integers(0, 255, shape).astype(np.uint8)
        else:
            self.obs = rng.normal(size=shape).astype(kind.dtype)
        self.action = rng.integers(0, 2, (STEPS, ENVS))
        self.reward = rng.normal(size=(STEPS, ENVS)).astype(np.float32)
        self.ends = np.zeros((STEPS, ENVS), bool)
        self.td = np.abs(rng.normal(size=BATCH)).astype(np.float32)


class Hpcrl:
    """ReplayMemory, as a replay rank uses it: whole trajectories in, batches into memory that is there."""

    def __init__(self, kind: Kind, envs: int = ENVS, capacity: int | None = None) -> None:
        capacity = kind.capacity if capacity is None else capacity
        env, data = self.env_spec(kind), Data(kind)
        config = ReplayConfig(capacity=capacity, sampling="prioritized", alpha=ALPHA, frame_stack=kind.frames)
        spec = trajectory_spec(env, STEPS, envs)
        layout = ReplayLayout(spec=spec, num_columns=envs, capacity=capacity)
        self.memory = ReplayMemory(layout, config, range(envs), np.random.default_rng(0), gamma=0.99)
        self.trajectory = _trajectory(spec, data)
        batch = TrajectoryLayout(transition_spec(env, BATCH))
        self._batch = batch.view(batch.allocate(1)[0])
        self._td = data.td
        for _ in range(capacity // (envs * STEPS) + 1):
            self.memory.insert(self.trajectory)

    @staticmethod
    def env_spec(kind: Kind) -> EnvSpec:
        """Of an environment with such observations."""
        observation = ArraySpec(shape=kind.shape, dtype=kind.dtype)
        return EnvSpec(id=kind.name, observation=observation, action=ActionSpec(kind="discrete", size=2))

    def move(self) -> None:
        """As Contestant.move."""
        self.memory.insert(self.trajectory)
        sample = self.memory.sample(BATCH, BETA)
        self.memory.gather(sample, self._batch, slice(0, BATCH))
        self.memory.update_priorities(sample, self._td)


class Cpprb:
    """cpprb's buffer, which is told all 256 env_steps at once; by frames in its most sparing form."""

    def __init__(self, kind: Kind) -> None:
        import cpprb

        data, flat = Data(kind), (ENVS * STEPS, *kind.shape)
        # one environment after the other, so that the next observation is the one behind
        self._added = {
            "obs": data.obs[:-1].swapaxes(0, 1).reshape(flat),
            "next_obs": data.obs[1:].swapaxes(0, 1).reshape(flat),
            "act": data.action.T.reshape(-1, 1),
            "rew": data.reward.T.reshape(-1, 1),
            "done": data.ends.T.reshape(-1, 1).astype(np.float32),
        }
        observation: dict[str, Any] = {"shape": kind.shape, "dtype": np.dtype(kind.dtype)}
        entries = {"obs": observation, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        options: dict[str, Any] = {}
        if kind.frames:  # stacks lie along the last axis there
            for name in ("obs", "next_obs"):
                self._added[name] = np.ascontiguousarray(np.moveaxis(self._added[name], 1, -1))
            observation["shape"] = (*kind.shape[1:], kind.frames)
            options = {"next_of": "obs", "stack_compress": "obs"}
        else:
            entries["next_obs"] = observation
        self._buffer = cpprb.PrioritizedReplayBuffer(kind.capacity, entries, alpha=ALPHA, **options)
        self._td = data.td
        for _ in range(kind.capacity // (ENVS * STEPS) + 1):
            self._buffer.add(**self._added)

    def move(self) -> None:
        """As Contestant.move."""
        self._buffer.add(**self._added)
        sample = self._buffer.sample(BATCH, beta=BETA)
        self._buffer.update_priorities(sample["indexes"], self._td)


class Tianshou:
    """tianshou's prioritized buffer of 32 environments, which is told one env_step of all of them at a time."""

    def __init__(self, kind: Kind) -> None:
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer

        data = Data(kind)
        options: dict[str, Any] = {}
        if kind.frames:
            options = {"stack_num": kind.frames, "save_only_last_obs": True, "ignore_obs_next": True}
        self._buffer = PrioritizedVectorReplayBuffer(
            kind.capacity, buffer_num=ENVS, alpha=ALPHA, beta=BETA, **options
        )
        self._steps = [
            Batch(
                obs=data.obs[t],
                act=data.action[t],
                rew=data.reward[t],
                terminated=data.ends[t],
                truncated=data.ends[t],
                obs_next=data.obs[t + 1],
                info=Batch(),
            )
            for t in range(STEPS)
        ]
        self._td = data.td
        for _ in range(kind.capacity // (ENVS * STEPS) + 1):
            self._add()

    def move(self) -> None:
        """As Contestant.move."""
        self._add()
        _, indices = self._buffer.sample(BATCH)
        self._buffer.update_weight(indices, self._td)

    def _add(self) -> None:
        for step in self._steps:
            self._buffer.add(step)


CONTESTANTS: dict[str, Callable[[Kind], Contestant]] = {
    "hpcrl": Hpcrl,
    "cpprb": Cpprb,
    "tianshou": Tianshou,
}


def missing_peers() -> list[str]:
    """Those that are not installed."""
    return [name for name in PEERS if importlib.util.find_spec(name) is None]


def _trajectory(spec: TrajectorySpec, data: Data) -> Trajectory:
    """Data of the first environments; what it ends with is what it begins with, so it may follow itself."""
    layout, envs = TrajectoryLayout(spec), spec.num_envs
    row = layout.allocate(1)[0]
    trajectory = layout.begin(row, attempt=0, version=0, actor=0, grant=0, envs=range(envs))
    trajectory.fields["obs"][...] = data.obs[:, :envs]
    trajectory.fields["obs"][-1] = data.obs[0, :envs]
    trajectory.fields["action"][...] = data.action[:, :envs]
    trajectory.fields["reward"][...] = data.reward[:, :envs]
    trajectory.fields["valid"][...] = True
    return trajectory
