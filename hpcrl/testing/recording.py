"""What an environment gave for a fixed sequence of actions, copied at once, to be looked at afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.data.specs import ActionSpec, EnvSpec
from hpcrl.envs import Step, VectorEnv, require_choices

Array = npt.NDArray[Any]
STEP_FIELDS = tuple(field.name for field in fields(Step))


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A run of T env_steps of B environments."""

    spec: EnvSpec
    first_obs: Array
    """[B, *shape]: what reset returned."""
    steps: tuple[Step, ...]
    """T copies."""
    changed_by_send: frozenset[str]
    """Fields of a Step that had changed between its recv and the end of the next send."""

    def stack(self, name: str) -> Array:
        """One field of all steps, [T, B, ...]."""
        return np.stack([getattr(step, name) for step in self.steps])

    @property
    def ended(self) -> Array:
        """[T, B]: terminated or truncated."""
        return np.logical_or(self.stack("terminated"), self.stack("truncated"))

    def obs_before(self) -> Array:
        """[T, B, ...]: the observation on which each env_step acted."""
        return np.concatenate([self.first_obs[None], self.stack("obs")[:-1]])

    def row(self, index: int) -> tuple[Array, ...]:
        """Everything environment `index` gave: first observation, then each field over time."""
        return (self.first_obs[index], *(self.stack(name)[:, index] for name in STEP_FIELDS))


def same(left: Sequence[Array], right: Sequence[Array]) -> bool:
    """Tell whether two rows are bit-equal (NaN equals NaN)."""
    return all(
        a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(left, right, strict=True)
    )


def draw_actions(spec: ActionSpec, steps: int, num_envs: int) -> Array:
    """Random actions [T, B, *shape]; continuous ones also go a little past their bounds."""
    rng = np.random.default_rng(0)
    if spec.kind != "continuous":
        choices = np.reshape(spec.choices_per_part, spec.shape)
        return rng.integers(0, choices, (steps, num_envs, *spec.shape), np.int64)
    low = np.where(np.isfinite(spec.low), spec.low, -1.0)
    high = np.where(np.isfinite(spec.high), spec.high, 1.0)
    unit = rng.uniform(-0.1, 1.1, (steps, num_envs, spec.size))
    return np.asarray(low + unit * (high - low), np.float32)


def allow(spec: EnvSpec, obs: Array, actions: Array) -> Array:
    """Actions [B, *shape] as near to `actions` as the masks of obs [B, ...] allow; the same where there are none."""
    if not spec.mask_size:
        return actions
    nearest = actions.reshape(len(obs), -1).copy()
    masks = np.split(obs[:, -spec.mask_size :] != 0, np.cumsum(spec.action.choices_per_part)[:-1], axis=1)
    for part, mask in enumerate(masks):
        for row in np.flatnonzero(mask.any(axis=1)):
            allowed = np.flatnonzero(mask[row])
            nearest[row, part] = allowed[np.abs(allowed - nearest[row, part]).argmin()]
    return nearest.reshape(actions.shape)


def record(env: VectorEnv, actions: Array, *, spoil_actions: bool = False) -> Recording:
    """Run a fresh environment over actions [T, B, ...], or the nearest that are allowed, and close it.

    Raises RuntimeError when a mask allows nothing.
    With `spoil_actions` every action array is overwritten as soon as `send` has returned.
    """
    try:
        first_obs = np.array(env.reset())
        steps: list[Step] = []
        changed: set[str] = set()
        lent: Step | None = None
        obs = first_obs
        require_choices(env.spec, obs, np.ones(len(obs), bool))
        for chosen in actions:
            handed = allow(env.spec, obs, chosen).copy()
            env.send(handed)
            if spoil_actions:
                handed[...] = 0
            if lent is not None:
                changed |= {
                    name
                    for name in STEP_FIELDS
                    if np.asarray(getattr(lent, name)).tobytes() != getattr(steps[-1], name).tobytes()
                }
            lent = env.recv()
            obs = np.array(lent.obs)
            require_choices(env.spec, obs, ~np.logical_or(lent.terminated, lent.truncated))
            steps.append(Step(**{name: np.array(getattr(lent, name)) for name in STEP_FIELDS}))
        return Recording(
            spec=env.spec, first_obs=first_obs, steps=tuple(steps), changed_by_send=frozenset(changed)
        )
    finally:
        env.close()
