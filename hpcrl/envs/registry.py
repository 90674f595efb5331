"""From a configuration to environments, whatever the engine."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hpcrl.config import ConfigError, EnvConfig, load_object
from hpcrl.data.specs import EnvSpec
from hpcrl.envs.base import VectorEnv
from hpcrl.envs.toy import Bandit, Chain, Counting, Lives, TimeLimitChain
from hpcrl.envs.toy_faults import FailingEnv, Fault, SlowEnv
from hpcrl.envs.toy_recall import Recall
from hpcrl.envs.toy_vector import Dynamics, ToyVectorEnv

TOY_DYNAMICS: dict[str, Callable[..., Dynamics]] = {
    "bandit": Bandit,
    "chain": Chain,
    "counting": Counting,
    "lives": Lives,
    "recall": Recall,
    "time-limit-chain": TimeLimitChain,
}


def env_seed(seed: int, index: int) -> int:
    """Seed of the environment with this global index: 31 bits of SeedSequence([seed, index])."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint32)[0] >> 1)


def make_vector_env(config: EnvConfig, indices: Sequence[int], seed: int) -> VectorEnv:
    """Make the environments with these global indices.

    Environment i depends on (seed, i) alone, so the same set of environments exists however the indices are
    divided over ranks and groups, and over every later episode.

    Raises:
        ConfigError: the engine is not installed, or cannot make env.id, or its spaces are not supported.
        ValueError: no indices.
    """
    if len(indices) == 0:
        raise ValueError("indices are empty; a vector environment needs at least one environment")
    return _make(config, indices, [env_seed(seed, index) for index in indices])


def make_with_nan_rewards(*, num_envs: int, seeds: Sequence[int], env: dict[str, Any]) -> VectorEnv:
    """Make the environments of another `env` section, but every reward is NaN: an `env.id` for `hpcrl drill`."""
    config = EnvConfig.parse(env, "env.kwargs.env")
    return FailingEnv(_make(config, range(num_envs), seeds), 0, "nan")


def _make(config: EnvConfig, indices: Sequence[int], seeds: Sequence[int]) -> VectorEnv:
    if config.engine == "toy":
        return _make_toy(config, indices, seeds)
    if config.engine == "custom":
        return _make_custom(config, seeds)
    if config.engine == "envpool":
        from hpcrl.envs import from_envpool

        _check_id(config.id, "EnvPool", from_envpool.registered_ids())
        return from_envpool.make_by_id(config.id, config.kwargs, seeds, config.num_threads)
    from hpcrl.envs import from_gymnasium

    if ":" not in config.id:  # module:id is registered by the import of its module
        _check_id(config.id, "gymnasium", from_gymnasium.registered_ids())
    return from_gymnasium.make_by_id(
        config.id, config.kwargs, seeds, config.vectorization, config.mask_from_info
    )


def make_env_spec(config: EnvConfig) -> EnvSpec:
    """Make one environment in this process, take its spec and close it. Raises ConfigError."""
    env = make_vector_env(config.model_copy(update={"vectorization": "sync", "num_threads": 1}), range(1), 0)
    try:
        return env.spec
    finally:
        env.close()


def _make_toy(config: EnvConfig, indices: Sequence[int], seeds: Sequence[int]) -> VectorEnv:
    kwargs = dict(config.kwargs)
    _check_id(config.id, "toy", [*TOY_DYNAMICS, "slow", "failing"])
    try:
        if config.id == "slow":
            return SlowEnv(_counting(indices, seeds), **kwargs)
        if config.id == "failing":
            return _make_failing(indices, seeds, **kwargs)
        return ToyVectorEnv(TOY_DYNAMICS[config.id](indices, seeds, **kwargs), len(indices))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"env.kwargs={config.kwargs} do not fit toy environment {config.id!r}: {error}"
        ) from error


def _counting(indices: Sequence[int], seeds: Sequence[int]) -> VectorEnv:
    return ToyVectorEnv(Counting(indices, seeds), len(indices))


def _make_failing(
    indices: Sequence[int],
    seeds: Sequence[int],
    *,
    at_step: int = 10,
    fault: Fault = "raise",
    index: int | None = None,
) -> VectorEnv:
    """Make counting environments; the group that holds global index `index` (None: every group) fails."""
    env = _counting(indices, seeds)
    return FailingEnv(env, at_step, fault) if index is None or index in indices else env


def _make_custom(config: EnvConfig, seeds: Sequence[int]) -> VectorEnv:
    """Call `make(num_envs=, seeds=, **kwargs)` for a VectorEnv, or `make(**kwargs)` for a gymnasium.Env each.

    The first form may also return a gymnasium.vector.VectorEnv of any autoreset mode; its environments are
    seeded by reset(seed=[...]).
    """
    make = load_object(config.id, f"env.id={config.id!r}")
    if not callable(make):
        raise ConfigError(f"env.id={config.id!r} is not callable; see env.engine=custom")
    if not takes(make, {"num_envs", "seeds"}):
        from hpcrl.envs import from_gymnasium

        factory = _Factory(config.id, config.kwargs)
        return from_gymnasium.make_from_factory(
            config.id, factory, seeds, config.vectorization, config.mask_from_info
        )
    if config.mask_from_info:
        raise ConfigError(
            f"env.mask_from_info=true: env.id={config.id!r} makes a vector environment; let it observe a Dict with the "
            "mask as `action_mask`, and use env.mask_from_info=false"
        )
    try:
        env = make(num_envs=len(seeds), seeds=list(seeds), **config.kwargs)
    except TypeError as error:
        raise ConfigError(f"env.id={config.id!r} cannot be made with these env.kwargs: {error}") from error
    if isinstance(env, VectorEnv) and isinstance(getattr(env, "spec", None), EnvSpec):
        return env
    from hpcrl.envs import from_gymnasium

    if from_gymnasium.is_vector_env(env):
        return from_gymnasium.adapt(env, seeds=seeds, env_id=config.id)
    raise ConfigError(
        f"env.id={config.id!r} made a {type(env).__name__}; use an hpcrl.envs.VectorEnv (spec, num_envs, "
        "reset, send, recv, close) or a gymnasium.vector.VectorEnv"
    )


class _Factory:
    """Makes one environment of a custom factory; travels to a new process by name."""

    def __init__(self, path: str, kwargs: dict[str, Any]) -> None:
        self._path = path
        self._kwargs = kwargs

    def __call__(self) -> Any:
        return load_object(self._path, f"env.id={self._path!r}")(**self._kwargs)


def takes(function: Callable[..., Any], names: set[str]) -> bool:
    """Whether a function has arguments of all these names. Pure."""
    try:
        return names <= inspect.signature(function).parameters.keys()
    except ValueError:
        return False


def _check_id(env_id: str, engine: str, known: Iterable[str]) -> None:
    known = list(known)
    if env_id in known:
        return
    near = difflib.get_close_matches(env_id, known, n=4, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    names = f" Known: {', '.join(sorted(known))}." if len(known) <= 10 else ""
    raise ConfigError(
        f"env.id={env_id!r} is not an environment of {engine}{hint}{names} Change env.id or env.engine"
    )
