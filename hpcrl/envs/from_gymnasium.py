"""Gymnasium behind the protocol: environments made here, or any vector environment adapted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from hpcrl.config import ConfigError
from hpcrl.data.specs import EnvSpec
from hpcrl.envs import plain_state
from hpcrl.envs.base import Actions, CallOrder, EpisodeTracker, Obs, Step
from hpcrl.envs.mask_from_info import MaskFromInfo
from hpcrl.envs.spaces import SpaceAdapter

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]


class GymnasiumVectorEnv:
    """A gymnasium vector environment of any autoreset mode, seeded by env.

    Next-step engines map one to one. Same-step and disabled engines cannot leave a row out of a step, so
    on a reset step the row is stepped as well, that result is thrown away, and the row is reset once
    more: every transition that is returned is a true one, at the price of one wasted env_step and reset
    per episode. Such an engine must honor `options["reset_mask"]`.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv[Any, Any, Any],
        env_id: str,
        seeds: Sequence[int],
        max_episode_steps: int | None = None,
    ) -> None:
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ConfigError(
                f"env.id={env_id!r}: the vector environment's metadata['autoreset_mode'] is {mode!r}; where "
                f"episodes end is known only if it is one of {', '.join(str(m) for m in AutoresetMode)}"
            )
        if len(seeds) != env.num_envs:
            raise ConfigError(f"env.id={env_id!r}: got {len(seeds)} seeds for {env.num_envs} environments")
        self._env = env
        self._mode = mode
        self._spaces = SpaceAdapter(
            env_id, env.single_observation_space, env.single_action_space, max_episode_steps
        )
        self.spec: EnvSpec = self._spaces.spec
        self.num_envs: int = env.num_envs
        self._seeds: Any = [int(seed) for seed in seeds]  # the annotation of reset() leaves lists out
        self._order = CallOrder()
        self._tracker = EpisodeTracker(self.num_envs)
        self._actions: npt.NDArray[Any] | None = None

    def reset(self) -> Obs:
        """See VectorEnv."""
        self._order.reset()
        obs, _ = self._env.reset(seed=self._seeds)
        return self._spaces.encode(obs)

    def send(self, actions: Actions) -> None:
        """See VectorEnv. Processes start stepping now; an engine without processes steps in `recv`."""
        fresh = self._spaces.decode(actions, self.num_envs)
        self._order.send()
        if isinstance(self._env, AsyncVectorEnv):
            self._env.step_async(fresh)
        else:
            self._actions = fresh

    def recv(self) -> Step:
        """See VectorEnv. Raises RuntimeError also when an environment process is gone."""
        self._order.recv()
        if isinstance(self._env, AsyncVectorEnv):
            try:
                obs, reward, terminated, truncated, info = self._env.step_wait()
            except (EOFError, ConnectionError) as error:
                _stop_processes(self._env)
                raise RuntimeError(f"a process of env.id={self.spec.id!r} died") from error
        else:
            obs, reward, terminated, truncated, info = self._env.step(self._actions)
        encoded = self._spaces.encode(obs)
        if self._mode is not AutoresetMode.NEXT_STEP:
            encoded = self._as_next_step(encoded, np.asarray(terminated) | np.asarray(truncated), info)
        return self._tracker.step(encoded, reward, terminated, truncated)

    @property
    def frames_per_s(self) -> float:
        """At which `render` is to be shown, as the environment says."""
        return float(self._env.metadata.get("render_fps") or 30.0)

    def render(self) -> Any:
        """The picture of each environment, made with a render_mode; between env_steps."""
        return self._env.render()

    def state(self) -> dict[str, npt.NDArray[Any]] | None:
        """See Resumable. Environments in this process whose state is plain values; see `plain_state.save`."""
        if not isinstance(self._env, SyncVectorEnv) or self._mode is not AutoresetMode.NEXT_STEP:
            return None
        texts = [plain_state.save(env) for env in self._env.envs]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return None
        episode = {f"episode/{name}": array for name, array in self._tracker.state().items()}
        return {"text": plain_state.text_rows(known), **episode}

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """See Resumable."""
        if not isinstance(self._env, SyncVectorEnv) or "text" not in state:
            raise ValueError(
                f"env.id={self.spec.id!r}: the saved state is not of environments in one process"
            )
        self._order.resume()
        self._env.reset(seed=self._seeds)
        for env, text in zip(self._env.envs, plain_state.row_texts(state["text"]), strict=True):
            plain_state.load(env, text)
        episode = {name.removeprefix("episode/"): array for name, array in state.items() if "/" in name}
        self._tracker.load_state(episode)
        self._env._autoreset_envs[:] = episode["ended"]

    def close(self) -> None:
        """See VectorEnv. Environments close themselves, except in processes that are stepping or dead."""
        stepping = self._order.stepping
        if not self._order.close():
            return
        if isinstance(self._env, AsyncVectorEnv) and stepping:
            _stop_processes(self._env)
        self._env.close()

    def _as_next_step(self, obs: Obs, ended: npt.NDArray[np.bool_], info: dict[str, Any]) -> Obs:
        """Return what a next-step engine would observe: last ones at ends, first ones on reset steps."""
        in_vain = self._tracker.resets_next
        ended = ended & ~in_vain
        result = np.array(obs)
        if self._mode is AutoresetMode.SAME_STEP:
            for row in np.flatnonzero(ended):
                result[row] = self._spaces.encode_one(info["final_obs"][row])
            to_reset = in_vain.copy()
        else:
            to_reset = in_vain | ended
        if to_reset.any():
            before = np.array(obs)[~to_reset]
            fresh = self._spaces.encode(self._env.reset(options={"reset_mask": to_reset})[0])
            if not np.array_equal(fresh[~to_reset], before, equal_nan=True):
                raise RuntimeError(
                    f"the vector environment behind env.id={self.spec.id!r} has mode {self._mode} but "
                    "ignores options['reset_mask'] in reset(); make it AutoresetMode.NEXT_STEP"
                )
            result[in_vain] = fresh[in_vain]
        return result


def _stop_processes(env: AsyncVectorEnv[Any, Any]) -> None:
    """End the processes whatever they are doing; gymnasium's own close fails when one of them is dead."""
    for process in env.processes:
        process.terminate()
    for process in env.processes:
        process.join()
    for pipe in env.parent_pipes:
        if pipe is not None:
            pipe.close()
    env.closed = True


def adapt(
    env: gymnasium.vector.VectorEnv[Any, Any, Any], *, seeds: Sequence[int], env_id: str | None = None
) -> GymnasiumVectorEnv:
    """Put a vector environment of any autoreset mode behind the protocol; `seeds` holds one seed per env.

    Raises ConfigError for spaces that are not supported and engines that do not name their mode.
    """
    spec = getattr(env, "spec", None)
    name = env_id or getattr(spec, "id", None) or type(env).__name__
    return GymnasiumVectorEnv(env, name, seeds, getattr(spec, "max_episode_steps", None))


def make_by_id(
    env_id: str,
    kwargs: dict[str, Any],
    seeds: Sequence[int],
    vectorization: Literal["sync", "async"],
    mask_from_info: bool = False,
) -> GymnasiumVectorEnv:
    """Vector environment of `len(seeds)` copies of a registered environment. Raises ConfigError."""
    factory = partial(_make_registered, env_id, kwargs)
    return make_from_factory(env_id, factory, seeds, vectorization, mask_from_info)


def make_from_factory(
    env_id: str,
    factory: EnvFactory,
    seeds: Sequence[int],
    vectorization: Literal["sync", "async"],
    mask_from_info: bool = False,
) -> GymnasiumVectorEnv:
    """Vector environment from a factory of single environments, each inside MaskFromInfo where that is asked for.

    vectorization `async` gives every environment a process of its own, started by spawn: forking a
    process that runs MPI or threads is not safe. `factory` must then be importable from the new process.
    """
    if mask_from_info:
        factory = partial(_masked, env_id, factory)
    probe = _probe(env_id, factory)
    try:
        # Refuse spaces here, before processes exist.
        limit = getattr(probe.spec, "max_episode_steps", None)
        SpaceAdapter(env_id, probe.observation_space, probe.action_space, limit)
    finally:
        probe.close()
    factories = [factory] * len(seeds)
    if vectorization == "async":
        # copy: the processes write the next observations into shared memory while the caller still reads.
        vector: gymnasium.vector.VectorEnv[Any, Any, Any] = AsyncVectorEnv(
            factories, context="spawn", autoreset_mode=AutoresetMode.NEXT_STEP
        )
    else:
        vector = SyncVectorEnv(factories, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    return GymnasiumVectorEnv(vector, env_id, seeds, limit)


def is_vector_env(env: object) -> bool:
    """Tell whether this is a gymnasium vector environment."""
    return isinstance(env, gymnasium.vector.VectorEnv)


def registered_ids() -> list[str]:
    """Every id of gymnasium's registry."""
    return list(gymnasium.registry)


def _make_registered(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(env_id, **{"disable_env_checker": True, **kwargs})


def _masked(env_id: str, factory: EnvFactory) -> gymnasium.Env[Any, Any]:
    env = factory()
    return MaskFromInfo(env, env_id) if isinstance(env, gymnasium.Env) else env


def _probe(env_id: str, factory: EnvFactory) -> gymnasium.Env[Any, Any]:
    try:
        env = factory()
    except gymnasium.error.UnregisteredEnv as error:
        raise ConfigError(f"env.id={env_id!r} is not registered in gymnasium: {error}") from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"env.id={env_id!r} needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(f"env.id={env_id!r} cannot be made with these env.kwargs: {error}") from error
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"env.id={env_id!r} made a {type(env).__name__}, not a gymnasium.Env")
    return env
