"""EnvPool behind the protocol.

`send` hands the actions to EnvPool's threads and returns; they step while the caller computes. That split
is the asynchronous mode used here. EnvPool's own (batch_size below num_envs) hands out the environments
that finish first; a trajectory needs the env_step of every environment before the next one, so collecting
partial batches until all are in would wait exactly as long. Overlap comes from env.num_groups instead:
one group steps while another is served.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.config import ConfigError
from hpcrl.data.specs import EnvSpec
from hpcrl.envs.base import Actions, Bools, CallOrder, EpisodeTracker, Obs, Step
from hpcrl.envs.spaces import SpaceAdapter

RESERVED_KWARGS = {
    "num_envs": "env.num_envs",
    "batch_size": "env.num_envs and env.num_groups",
    "num_threads": "env.num_threads",
    "seed": "seed",
    "env_seed": "seed",
    "reward_clip": "algorithm.reward_clip, which keeps the logged returns raw",
}


class EnvPoolVectorEnv:
    """An EnvPool object of the gymnasium interface, batch_size = num_envs.

    EnvPool resets on the next step. Its `elapsed_step` counts from 0 at a reset, which lets every row be
    checked: a reset without an end before it, or an end without a reset after it, raises instead of
    entering training. With episodic_life (Atari) a lost life is `terminated` and the game goes on after
    one reset step; returns are reported per game.
    """

    def __init__(self, pool: Any, env_id: str) -> None:
        self._pool = pool
        limit = pool.config.get("max_episode_steps")
        self._spaces = SpaceAdapter(env_id, pool.observation_space, pool.action_space, limit or None)
        self.spec: EnvSpec = self._spaces.spec
        self.num_envs: int = int(pool.config["num_envs"])
        self._limit = limit or np.iinfo(np.int64).max
        self._order = CallOrder()
        self._tracker = EpisodeTracker(self.num_envs)
        self._game_over: Bools = np.zeros(self.num_envs, bool)

    def reset(self) -> Obs:
        """See VectorEnv."""
        self._order.reset()
        obs, info = self._pool.reset()
        order = _order(info["env_id"])
        encoded = self._spaces.encode(obs)
        return encoded if order is None else encoded[order]

    def send(self, actions: Actions) -> None:
        """See VectorEnv. EnvPool's threads start stepping now."""
        fresh = self._spaces.decode(actions, self.num_envs)
        self._order.send()
        self._pool.send(fresh)

    def recv(self) -> Step:
        """See VectorEnv. Raises RuntimeError also where EnvPool's flags contradict its step count."""
        self._order.recv()
        obs, reward, terminated, truncated, info = self._pool.recv()
        elapsed, game_end = info["elapsed_step"], info.get("terminated")
        order, encoded = _order(info["env_id"]), self._spaces.encode(obs)
        if order is not None:
            encoded, reward, terminated, truncated = (
                encoded[order],
                reward[order],
                terminated[order],
                truncated[order],
            )
            elapsed, game_end = elapsed[order], None if game_end is None else game_end[order]
        self._check_resets(elapsed)
        terminated, truncated = split_end(terminated, truncated, elapsed, self._limit)
        over = terminated | truncated
        if game_end is not None:  # Atari: the game's own end, whatever episodic_life makes of lost lives
            over = over & (truncated | (game_end != 0))
        self._game_over = over
        return self._tracker.step(encoded, reward, terminated, truncated, game_over=over)

    def close(self) -> None:
        """See VectorEnv."""
        if self._order.close():
            self._pool.close()
            self._pool = None  # EnvPool joins its threads when the object goes

    def _check_resets(self, elapsed: npt.NDArray[Any]) -> None:
        wrong = (elapsed == 0) != self._game_over
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            what = (
                "was reset although no episode had ended" if elapsed[row] == 0 else "ended but was not reset"
            )
            raise RuntimeError(f"EnvPool {self.spec.id}: environment {row} of the group {what}")


def split_end(
    terminated: npt.NDArray[Any], truncated: npt.NDArray[Any], elapsed: npt.NDArray[Any], limit: int
) -> tuple[Bools, Bools]:
    """Terminated and truncated [B] from EnvPool's flags and step count.

    EnvPool calls an end on the last allowed step truncated even when the state is terminal too; that is
    kept: it costs one bootstrap from a terminal state, while the reverse would lose a bootstrap at every
    time limit.

    Raises:
        RuntimeError: an environment ran to its limit (`elapsed >= limit`) but no end is flagged.
    """
    terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
    ended = terminated | truncated
    at_limit = np.asarray(elapsed) >= limit
    if not at_limit.any():
        return terminated & ~truncated, truncated
    if (at_limit & ~ended).any():
        row = int(np.flatnonzero(at_limit & ~ended)[0])
        raise RuntimeError(
            f"EnvPool: environment {row} of the group reached max_episode_steps={limit} but flags no end"
        )
    cut = ended & (at_limit | truncated)
    return ended & ~cut, cut


def make_by_id(
    env_id: str, kwargs: dict[str, Any], seeds: Sequence[int], num_threads: int
) -> EnvPoolVectorEnv:
    """EnvPool of `len(seeds)` environments, one seed each. Raises ConfigError."""
    for key in RESERVED_KWARGS.keys() & kwargs.keys():
        raise ConfigError(f"env.kwargs.{key} cannot be set for EnvPool; use {RESERVED_KWARGS[key]}")
    with warnings.catch_warnings():
        # gymnasium's Box warns about the precision of EnvPool's bounds, which nobody can change.
        warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
        pool = _make_pool(env_id, kwargs, seeds, num_threads)
        return EnvPoolVectorEnv(pool, env_id)


def registered_ids() -> list[str]:
    """Every id of EnvPool's registry. Raises ConfigError when EnvPool is not installed."""
    return list(_envpool().list_all_envs())


def _envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise ConfigError(
            f"env.engine=envpool cannot be used: {error}; install envpool or set env.engine=gymnasium"
        ) from error
    return envpool


def _make_pool(env_id: str, kwargs: dict[str, Any], seeds: Sequence[int], num_threads: int) -> Any:
    envpool = _envpool()
    if env_id not in envpool.list_all_envs():
        raise ConfigError(f"env.id={env_id!r} is not registered in EnvPool")
    try:
        return envpool.make_gymnasium(
            env_id, num_envs=len(seeds), num_threads=num_threads, env_seed=list(seeds), **kwargs
        )
    except (AssertionError, ImportError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"env.id={env_id!r} cannot be made by EnvPool with these env.kwargs: {error}"
        ) from error


def _order(env_id: npt.NDArray[np.int32]) -> npt.NDArray[np.intp] | None:
    """Indices that bring rows into the order of the environments; None where they are.

    EnvPool may deliver them in the order in which they finished.
    """
    return None if (env_id[1:] > env_id[:-1]).all() else np.argsort(env_id)
