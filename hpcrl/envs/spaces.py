"""From gymnasium spaces to specs and back. EnvPool describes itself by gymnasium spaces as well."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from hpcrl.config import ConfigError
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec, Part
from hpcrl.envs.base import Obs, prepare_actions

SUPPORTED_OBSERVATIONS = (
    "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these, nested as you like"
)
SUPPORTED_ACTIONS = "Discrete, MultiDiscrete, MultiBinary, or Box of floats"
MASK_KEY = "action_mask"
"""The entry of a Dict observation that tells which choices are allowed."""


class Leaf(NamedTuple):
    """One space without parts, and where it stands in the observation."""

    path: tuple[str | int, ...]
    space: gymnasium.Space[Any]

    @property
    def name(self) -> str:
        """For messages and specs."""
        return "/".join(map(str, self.path))


class SpaceAdapter:
    """The spec of an environment, and the conversions between its arrays and the engine's.

    Observations: a Dict or Tuple becomes one flat array of all its leaves, those of a Dict in the order of their keys.
    uint8 stays uint8 where all leaves are, all other numbers become float32; Discrete and MultiDiscrete become one-hot;
    a Box without dimensions becomes [1]. The leaf `action_mask` of a Dict comes last (see EnvSpec.masked); where it has
    one neighbor only, that keeps its shape.
    Actions: 0 .. n-1 become start .. start+n-1; continuous ones are clipped and take the shape of their Box.
    """

    def __init__(
        self,
        env_id: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        max_episode_steps: int | None,
    ) -> None:
        self._action_space = action_space
        action, self._starts = _action_spec(env_id, action_space)
        leaves = list(_leaves(env_id, observation_space))
        masks = [leaf for leaf in leaves if leaf.path == (MASK_KEY,)]
        plain = [leaf for leaf in leaves if leaf.path != (MASK_KEY,)]
        if not plain:
            raise ConfigError(
                f"env.id={env_id!r} observes nothing that a policy could see: {observation_space}; "
                "choose another env.id"
            )
        observation = features = _joined(plain)
        for mask in masks:
            _check_mask(env_id, mask.space, action)
            size = math.prod(features.shape) + sum(action.choices_per_part)
            observation = ArraySpec(shape=(size,), dtype=features.dtype)
        self._leaves = plain + masks
        self.spec = EnvSpec(
            id=env_id,
            observation=observation,
            action=action,
            max_episode_steps=max_episode_steps,
            masked=features if masks else None,
        )

    def encode(self, obs: Any) -> Obs:
        """Engine observations, batched as gymnasium does it, to [B, *spec.observation.shape].

        No copy where nothing changes.
        """
        dtype, shape = self.spec.observation.dtype, self.spec.observation.shape
        flat = [_flat(leaf.space, _find(obs, leaf.path), dtype) for leaf in self._leaves]
        joined = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)
        encoded: Obs = joined.reshape(-1, *shape)
        return encoded

    def encode_one(self, obs: Any) -> Obs:
        """One environment's observation, as its space has it, to [*spec.observation.shape]."""
        dtype, shape = self.spec.observation.dtype, self.spec.observation.shape
        flat = [_flat(leaf.space, np.asarray(_find(obs, leaf.path))[None], dtype) for leaf in self._leaves]
        encoded: Obs = np.concatenate(flat, axis=1).reshape(shape)
        return encoded

    def decode(self, actions: npt.NDArray[Any], num_envs: int) -> npt.NDArray[Any]:
        """Actions [B, *spec.action.shape] to a fresh array as the engine wants it. Raises ValueError."""
        fresh = prepare_actions(self.spec.action, num_envs, actions)
        if self._starts is not None:
            fresh += self._starts
        shaped = fresh.reshape(num_envs, *(self._action_space.shape or ()))
        return np.asarray(shaped, self._action_space.dtype)


def mask_size(env_id: str, action_space: gymnasium.Space[Any]) -> int:
    """Entries of a mask for these actions. Raises ConfigError where they are not choices."""
    action, _ = _action_spec(env_id, action_space)
    if action.kind == "continuous":
        raise ConfigError(
            f"env.mask_from_info=true: env.id={env_id!r} has the action space {action_space}, which has no choices "
            "to mask; use env.mask_from_info=false"
        )
    return sum(action.choices_per_part)


def _leaves(env_id: str, space: gymnasium.Space[Any], path: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    """Depth first. Raises ConfigError naming the leaf that is not supported."""
    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces, key=str):
            yield from _leaves(env_id, space.spaces[key], (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(env_id, part, (*path, index))
    else:
        leaf = Leaf(path, space)
        numeric = isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "biuf"
        if not numeric and not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise ConfigError(_unsupported(env_id, "observation", leaf.name, space, SUPPORTED_OBSERVATIONS))
        if 0 in (space.shape or ()):
            raise ConfigError(
                _unsupported(
                    env_id, "observation", leaf.name, space, "a Box or other space with numbers in it"
                )
            )
        yield leaf


def _joined(leaves: list[Leaf]) -> ArraySpec:
    """Of all leaves together."""
    bytes_only = all(isinstance(leaf.space, spaces.Box) and leaf.space.dtype == np.uint8 for leaf in leaves)
    dtype = "uint8" if bytes_only else "float32"
    parts = tuple(Part(leaf.name, _encoded_shape(leaf.space)) for leaf in leaves)
    if len(leaves) == 1:
        return ArraySpec(shape=parts[0].shape, dtype=dtype)
    return ArraySpec(shape=(sum(math.prod(part.shape) for part in parts),), dtype=dtype, parts=parts)


def _encoded_shape(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return (int(space.nvec.sum()),)
    return space.shape or (1,)


def _find(obs: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        obs = obs[key]
    return obs


def _flat(space: gymnasium.Space[Any], values: Any, dtype: str) -> npt.NDArray[Any]:
    """One leaf of B observations as [B, numbers]; the mask, a leaf like the others, is 0 or 1 in any dtype."""
    array = np.asarray(values)
    rows = array.reshape(len(array), -1)
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=dtype)[rows[:, 0].astype(np.int64) - int(space.start)]
    if isinstance(space, spaces.MultiDiscrete):
        choices = rows.astype(np.int64) - np.ravel(space.start)
        one_hots = [np.eye(int(n), dtype=dtype)[choices[:, i]] for i, n in enumerate(np.ravel(space.nvec))]
        return np.concatenate(one_hots, axis=1)
    return rows.astype(dtype, copy=False)


def _check_mask(env_id: str, space: gymnasium.Space[Any], action: ActionSpec) -> None:
    size = sum(action.choices_per_part)
    binary = isinstance(space, spaces.MultiBinary) or (
        isinstance(space, spaces.Box)
        and np.dtype(space.dtype).kind in "bui"
        and bool((space.low >= 0).all() and (space.high <= 1).all())
    )
    if action.kind == "continuous" or not binary or math.prod(space.shape or ()) != size:
        needs = (
            f"{size} zeros and ones, one per choice" if size else "an action of choices, not of real numbers"
        )
        raise ConfigError(
            f"env.id={env_id!r}: the observation {MASK_KEY!r} is {space}; a mask needs {needs} "
            f"(MultiBinary({size or 'n'}) or a Box of bool or integers from 0 to 1). If it is none, rename it in a "
            "factory of your own (env.engine=custom)"
        )


def _action_spec(env_id: str, space: gymnasium.Space[Any]) -> tuple[ActionSpec, npt.NDArray[np.int64] | None]:
    """The spec, and what to add to a choice; None for real numbers."""
    if isinstance(space, spaces.Discrete):
        return ActionSpec(kind="discrete", size=int(space.n)), np.asarray(space.start, np.int64)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and math.prod(space.shape) > 0:
        if isinstance(space, spaces.MultiBinary):
            choices, starts = (2,) * math.prod(space.shape), np.zeros(math.prod(space.shape), np.int64)
        else:
            choices, starts = tuple(map(int, np.ravel(space.nvec))), np.ravel(space.start).astype(np.int64)
        return ActionSpec(kind="multi_discrete", size=len(choices), choices=choices), starts
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and 0 not in space.shape:
        with np.errstate(over="ignore"):  # the largest float64 stands for no bound in some engines
            low, high = (
                tuple(map(float, np.ravel(bound).astype(np.float32))) for bound in (space.low, space.high)
            )
        return ActionSpec(kind="continuous", size=len(low), low=low, high=high), None
    raise ConfigError(_unsupported(env_id, "action", "", space, SUPPORTED_ACTIONS))


def _unsupported(env_id: str, what: str, leaf: str, space: object, supported: str) -> str:
    where = f" at {leaf!r}" if leaf else ""
    return (
        f"env.id={env_id!r} has the {what} space {space}{where}, which is not supported; supported is {supported}. "
        "Choose another env.id, or flatten the space in a factory of your own (env.engine=custom)"
    )
