"""From gymnasium spaces to specs and back. EnvPool describes itself by gymnasium spaces as well."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from hpcrl.config import ConfigError
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.envs.base import Obs, prepare_actions

SUPPORTED_OBSERVATIONS = "Box of any shape, or Discrete (given to the network as one-hot float32)"
SUPPORTED_ACTIONS = "Discrete, or Box of floats"


class SpaceAdapter:
    """The spec of an environment, and the conversions between its arrays and the engine's.

    Observations: uint8 stays uint8, all other numbers become float32; a Box without dimensions becomes [1].
    Actions: 0 .. n-1 become start .. start+n-1; continuous ones are clipped and take the shape of their Box.
    """

    def __init__(
        self,
        env_id: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        max_episode_steps: int | None,
    ) -> None:
        self._observation_space = observation_space
        self._action_space = action_space
        self.spec = EnvSpec(
            id=env_id,
            observation=_observation_spec(env_id, observation_space),
            action=_action_spec(env_id, action_space),
            max_episode_steps=max_episode_steps,
        )

    def encode(self, obs: npt.NDArray[Any]) -> Obs:
        """Engine observations [B, ...] to [B, *spec.observation.shape]; no copy where nothing changes."""
        spec = self.spec.observation
        obs = np.asarray(obs)
        if isinstance(self._observation_space, spaces.Discrete):
            choice = obs.reshape(-1).astype(np.int64) - int(self._observation_space.start)
            one_hot: Obs = np.eye(spec.shape[0], dtype=np.float32)[choice]
            return one_hot
        encoded: Obs = obs.reshape(-1, *spec.shape).astype(spec.dtype, copy=False)
        return encoded

    def decode(self, actions: npt.NDArray[Any], num_envs: int) -> npt.NDArray[Any]:
        """Actions [B, *spec.action.shape] to a fresh array as the engine wants it. Raises ValueError."""
        fresh = prepare_actions(self.spec.action, num_envs, actions)
        if isinstance(self._action_space, spaces.Discrete):
            fresh += self._action_space.start
        shaped = fresh.reshape(num_envs, *(self._action_space.shape or ()))
        return np.asarray(shaped, self._action_space.dtype)


def _observation_spec(env_id: str, space: gymnasium.Space[Any]) -> ArraySpec:
    if isinstance(space, spaces.Discrete):
        return ArraySpec(shape=(int(space.n),), dtype="float32")
    if isinstance(space, spaces.Box) and 0 not in space.shape:
        return ArraySpec(shape=space.shape or (1,), dtype="uint8" if space.dtype == np.uint8 else "float32")
    raise ConfigError(_unsupported(env_id, "observation", space, SUPPORTED_OBSERVATIONS))


def _action_spec(env_id: str, space: gymnasium.Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        return ActionSpec(kind="discrete", size=int(space.n))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and 0 not in space.shape:
        with np.errstate(over="ignore"):  # the largest float64 stands for no bound in some engines
            low, high = (
                tuple(map(float, np.ravel(bound).astype(np.float32))) for bound in (space.low, space.high)
            )
        return ActionSpec(kind="continuous", size=len(low), low=low, high=high)
    raise ConfigError(_unsupported(env_id, "action", space, SUPPORTED_ACTIONS))


def _unsupported(env_id: str, what: str, space: object, supported: str) -> str:
    return (
        f"env.id={env_id!r} has the {what} space {space}, which is not supported; supported is {supported}. "
        "Choose another env.id, or flatten the space in a factory of your own (env.engine=custom)"
    )
