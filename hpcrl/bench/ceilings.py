"""How fast each part of a run goes alone on one core: no part of a run on that core can be faster.

Every function takes a RunConfig as plain data and `seconds` to measure for, and is meant for `child.call`.
The sizes are one acting rank's share of the environments and one learner's share of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hpcrl.algorithms import Acting, Batch, LocalReducer, make_algorithm, stored_spec
from hpcrl.algorithms.base import Reducer
from hpcrl.bench.child import call
from hpcrl.bench.engines import engine_stepper
from hpcrl.config import ConfigError, RunConfig
from hpcrl.data.discounted import DiscountedReturns
from hpcrl.data.specs import DISCOUNTED_RETURN, ActionSpec
from hpcrl.envs import VectorEnv, make_vector_env

Arrays = dict[str, npt.NDArray[Any]]

MEASUREMENTS = (
    "environment_engine",
    "environment_adapter",
    "policy",
    "environment_and_policy",
    "updates",
)
"""Functions of this module. The last two are all that an actor and a learner compute, the others parts."""


def measure_ceilings(config: RunConfig, seconds: float) -> dict[str, dict[str, Any]]:
    """Each measurement in its own process on one core: name -> {"env_steps_per_s": ..., ...}."""
    arguments = {"config": config.to_dict(), "seconds": seconds}
    return {name: call(f"hpcrl.bench.ceilings:{name}", arguments, one_core=True) for name in MEASUREMENTS}


def environment_engine(config: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Step the engine itself with random actions. Returns {} where the engine is nothing but its adapter."""
    run = RunConfig.parse(config)
    num_envs = _share(run)
    step = engine_stepper(run.env, num_envs)
    if step is None:
        return {}
    return _timed(step, num_envs, seconds)


def environment_adapter(config: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Step the vector environment of hpcrl with random actions."""
    run = RunConfig.parse(config)
    env = _environment(run)
    if env.spec.mask_size:
        raise ConfigError(
            f"env.id={run.env.id!r} has action masks, which this measurement's random actions do not heed; "
            "choose an env.id without"
        )
    actions = random_actions(env.spec.action, env.num_envs)
    env.reset()

    def step() -> None:
        env.send(actions)
        env.recv()

    return _timed(step, env.num_envs, seconds)


def policy(config: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Act on the first observations."""
    run = RunConfig.parse(config)
    env = _environment(run)
    acting, obs = Acting(make_algorithm(run, env.spec), env.num_envs), env.reset().copy()
    rng = np.random.default_rng(0)
    return _timed(lambda: acting.act(obs, rng), env.num_envs, seconds)


def environment_and_policy(config: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Do all that an actor computes: act, step, write everything into arrays laid out as a trajectory."""
    run = RunConfig.parse(config)
    rollout = Rollout(run)
    return _timed(rollout.fill, rollout.env.num_envs * run.algorithm.unroll_length, seconds)


def updates(config: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Do all that a learner computes: updates from batches of the recipe's size, every epoch and use of them."""
    work, env_steps = update_work(RunConfig.parse(config))
    return _timed(work, env_steps, seconds)


def update_work(run: RunConfig, reducer: Reducer | None = None) -> tuple[Callable[[], object], int]:
    """What a learner does with its share of a batch that is new, and the env_steps of that. `reducer`: as Rollout."""
    rollout = Rollout(run, reducer)
    rollout.fill()
    learners = run.ranks.learners if run.scheme == "pipeline" else run.ranks.workers
    copies = max(1, run.batch_trajectories // learners)
    columns = copies * rollout.env.num_envs
    fields = {name: np.concatenate([array] * copies, 1) for name, array in rollout.fields.items()}
    return lambda: rollout.learn(fields, 0.0), columns * run.algorithm.unroll_length


class Rollout:
    """Environments, policy and the arrays of one trajectory: name -> [T, B, ...] (obs [T+1, B, ...])."""

    def __init__(self, run: RunConfig, reducer: Reducer | None = None) -> None:
        """`reducer`: that updates sum by; None: a learner alone."""
        self.env = _environment(run)
        self.algorithm = make_algorithm(run, self.env.spec)
        self.unroll_length = run.algorithm.unroll_length
        self.spec = spec = stored_spec(run, self.env.spec, self.algorithm, self.env.num_envs)
        self.fields: Arrays = {
            field.name: np.zeros(
                (field.entries(self.unroll_length), self.env.num_envs, *field.shape), field.dtype
            )
            for field in spec.fields
        }
        self.fields["obs"][-1] = self.env.reset()
        self._rng = np.random.default_rng(run.seed)
        self._acting = Acting(self.algorithm, self.env.num_envs)
        self._returns: DiscountedReturns | None = None
        if run.algorithm.normalize_returns:
            self._returns = DiscountedReturns(self.env.num_envs, run.algorithm.gamma)
        self._reducer, self._uses, self._updates = reducer or LocalReducer(), run.algorithm.buffer[1], 0
        # as it is at the beginning of the run
        self._exploration = self.algorithm.exploration(np.arange(self.env.num_envs), run.env.num_envs, 0)

    def act(self, obs: npt.NDArray[Any], rng: np.random.Generator) -> Arrays:
        """Choose for `obs` [B, ...], as `fill` does."""
        return self._acting.act(obs, rng, exploration=self._exploration)

    def fill(self) -> None:
        """Write the next T env_steps over the last ones."""
        fields = self.fields
        fields["obs"][0] = fields["obs"][-1]
        if self._acting.state is not None:
            fields["initial_state"][0] = self._acting.state
        for t in range(self.unroll_length):
            acted = self.act(fields["obs"][t], self._rng)
            self.env.send(self.algorithm.to_env(acted["action"]))
            for name in ("action", *(field.name for field in self.algorithm.extra_fields)):
                fields[name][t] = acted[name]
            step = self.env.recv()
            self._acting.restart(~step.valid)
            fields["obs"][t + 1] = step.obs
            fields["reward"][t] = step.reward
            fields["terminated"][t] = step.terminated
            fields["truncated"][t] = step.truncated
            fields["valid"][t] = step.valid
            fields["parameter_version"][t] = 0
            if self._returns is not None:
                ended = step.terminated | step.truncated
                fields[DISCOUNTED_RETURN.name][t] = self._returns.step(step.reward, ended)

    def learn(self, fields: Arrays, progress: float) -> None:
        """What a learner does with a batch [T, C, ...] that is new: all its updates, and running moments."""
        tensors = {name: torch.from_numpy(array) for name, array in fields.items()}
        for use in range(self._uses):
            batch = Batch(
                fields=tensors,
                column_offset=0,
                total_columns=fields["reward"].shape[1],
                update=self._updates,
            )
            result = self.algorithm.update(batch, self._reducer, progress)
            self._updates += 1
            if use == 0 and result.applied:
                self.algorithm.observe(batch, self._reducer)


def random_actions(spec: ActionSpec, num_envs: int) -> npt.NDArray[Any]:
    """Actions [B, ...] drawn evenly; unbounded dimensions are drawn from [-1, 1]."""
    rng = np.random.default_rng(0)
    if spec.kind != "continuous":
        return rng.integers(np.reshape(spec.choices_per_part, spec.shape), size=(num_envs, *spec.shape))
    low, high = np.clip(spec.low, -1, None), np.clip(spec.high, None, 1)
    return rng.uniform(low, high, (num_envs, spec.size)).astype(np.float32)


def _share(run: RunConfig) -> int:
    return max(1, run.env.num_envs // run.num_acting_ranks)


def _environment(run: RunConfig) -> VectorEnv:
    return make_vector_env(run.env, range(_share(run)), run.seed)


def _timed(work: Callable[[], object], env_steps: int, seconds: float) -> dict[str, Any]:
    """Repeat `work`, which is worth `env_steps`, for at least `seconds` after two warm-up calls."""
    work()
    work()
    calls = 0
    start = time.perf_counter()
    while (wall_s := time.perf_counter() - start) < seconds:
        work()
        calls += 1
    return {"env_steps_per_s": calls * env_steps / wall_s, "calls": calls, "wall_s": wall_s}
