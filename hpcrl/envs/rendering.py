"""One environment of a run as pictures, whatever engine it was trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.config import ConfigError, EnvConfig, load_object
from hpcrl.data.specs import EnvSpec
from hpcrl.envs.base import Actions, Obs, Step, VectorEnv
from hpcrl.envs.registry import make_env_spec, make_vector_env, takes

Frame = npt.NDArray[np.uint8]


class Filmed:
    """A VectorEnv of one environment that hands a picture of itself to `show` after each `reset` and `recv`."""

    def __init__(self, env: VectorEnv, show: Callable[[Frame], None]) -> None:
        """Raises ConfigError for an environment without a method `render`."""
        render = getattr(env, "render", None)
        if not callable(render):
            raise ConfigError(
                f"env.id={env.spec.id!r} makes a {type(env).__name__} without a method render(), which a video needs: "
                "pictures, uint8 [B, H, W, 3]"
            )
        self._env, self._show, self._render = env, show, render
        self.spec: EnvSpec = env.spec
        self.num_envs: int = env.num_envs
        self.frames_per_s = float(getattr(env, "frames_per_s", 30.0))

    def reset(self) -> Obs:
        """See VectorEnv. Raises ConfigError where there is no picture, and says what to install."""
        obs = self._env.reset()
        self._show(self._first_frame())
        return obs

    def send(self, actions: Actions) -> None:
        """See VectorEnv."""
        self._env.send(actions)

    def recv(self) -> Step:
        """See VectorEnv."""
        step = self._env.recv()
        self._show(np.asarray(self._render()[0], np.uint8))
        return step

    def close(self) -> None:
        """See VectorEnv."""
        self._env.close()

    def _first_frame(self) -> Frame:
        try:
            frames = self._render()
        except Exception as error:  # of whatever draws: pygame, OpenGL, a user's own
            raise ConfigError(
                f"env.id={self.spec.id!r} cannot be rendered: {' '.join(str(error).split())}. "
                'pip install "hpcrl[video]" brings what gymnasium\'s simple environments need'
            ) from error
        shape: tuple[int, ...] = () if frames is None or not len(frames) else np.shape(frames[0])
        if len(shape) != 3 or shape[-1] != 3:
            raise ConfigError(
                f"env.id={self.spec.id!r} renders {f'arrays of shape {shape}' if shape else 'nothing'}, not pictures "
                "[H, W, 3]: it has no render_mode rgb_array"
            )
        return np.asarray(frames[0], np.uint8)


def make_filmed(config: EnvConfig, seed: int, show: Callable[[Frame], None]) -> Filmed:
    """Environment 0 of those that `seed` makes, with pictures.

    One of EnvPool is taken from gymnasium, where that has one of this id with the same observations and actions. Raises
    ConfigError where there is nothing to see, or it cannot be made.
    """
    if config.engine == "toy":
        raise ConfigError(f"env.engine=toy: env.id={config.id!r} has nothing to see; leave --video out")
    if config.engine == "envpool":
        config = _of_gymnasium(config)
    make = load_object(config.id, f"env.id={config.id!r}") if config.engine == "custom" else None
    whole = make is not None and takes(make, {"num_envs", "seeds"})
    if make is not None and not whole and not takes(make, {"render_mode"}):
        raise ConfigError(
            f"env.id={config.id!r} takes no argument render_mode, which a video needs; give the function one and hand "
            "it to the environment"
        )
    kwargs = config.kwargs if whole else {**config.kwargs, "render_mode": "rgb_array"}
    one: dict[str, Any] = {"num_envs": 1, "num_groups": 1, "vectorization": "sync", "kwargs": kwargs}
    return Filmed(make_vector_env(config.model_copy(update=one), range(1), seed), show)


def _of_gymnasium(config: EnvConfig) -> EnvConfig:
    why = "env.engine=envpool draws no pictures, and"
    if config.kwargs:
        raise ConfigError(
            f"{why} env.kwargs={config.kwargs} are EnvPool's: no environment of gymnasium is known to be the same as "
            f"env.id={config.id!r}; leave --video out"
        )
    other = config.model_copy(update={"engine": "gymnasium"})
    try:
        theirs, ours = make_env_spec(other), make_env_spec(config)
    except ConfigError as error:
        raise ConfigError(f"{why} gymnasium cannot stand in: {error}") from error
    if replace(theirs, id=ours.id, max_episode_steps=ours.max_episode_steps) != ours:
        raise ConfigError(
            f"{why} gymnasium's {config.id!r} has other observations or actions ({theirs.observation}, "
            f"{theirs.action}) than EnvPool's ({ours.observation}, {ours.action}); leave --video out"
        )
    return other
