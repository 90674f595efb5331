"""What a run with a replay memory must not say, and what one without says in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcrl.config.base import Config
from hpcrl.config.off_policy import OffPolicyConfig

if TYPE_CHECKING:
    from hpcrl.config.run import RunConfig

_PRIORITIZED_ONLY = ("alpha", "beta", "beta_end", "eviction")
_OF_THE_LAG_BOUND = ("max_lag", "overdue")


def check_replay(run: RunConfig) -> None:
    """Raises ValueError that names the keys which contradict each other, and what is allowed. Pure."""
    algorithm = run.algorithm
    if not algorithm.uses_replay:
        for key, value in _changed(run.replay):
            raise ValueError(
                f"replay.{key}={_text(value)} has no effect with algorithm.name={algorithm.name}, which has no "
                f"replay memory; leave replay.{key} away"
            )
        return
    if not isinstance(algorithm, OffPolicyConfig):
        raise ValueError(
            f"algorithm.name={algorithm.name} uses a replay memory, but its Config does not derive from "
            "hpcrl.config.OffPolicyConfig, which says what is sampled from it"
        )
    if run.scheme == "synchronous":
        raise ValueError(
            f"scheme=synchronous has no replay memory, which algorithm.name={algorithm.name} needs; use "
            "scheme=pipeline (on one rank, too)"
        )
    _check_idle_keys(run)
    _check_eviction(run, algorithm)
    _check_sizes(run, algorithm)


def _check_idle_keys(run: RunConfig) -> None:
    for key, value in _changed(run.lag):
        if key in _OF_THE_LAG_BOUND:
            raise ValueError(
                f"lag.{key}={_text(value)} has no effect with algorithm.name={run.algorithm.name}: what a replay "
                f"memory gives is of any age, which is only recorded; leave lag.{key} away (how far "
                "actors and learners run ahead of each other is replay.tolerance)"
            )
    if run.replay.sampling == "uniform":
        for key, value in _changed(run.replay):
            if key in _PRIORITIZED_ONLY:
                raise ValueError(
                    f"replay.{key}={_text(value)} has no effect with replay.sampling=uniform; leave it away, or use "
                    "replay.sampling=prioritized"
                )


def _check_eviction(run: RunConfig, algorithm: OffPolicyConfig) -> None:
    for what, there in (
        (f"the sequences of algorithm.name={algorithm.name}", algorithm.sequence_steps > 0),
        (f"replay.frame_stack={run.replay.frame_stack}", run.replay.frame_stack > 0),
    ):
        if there and run.replay.eviction == "lowest_priority":
            raise ValueError(
                f"replay.eviction=lowest_priority is not there with {what}: what stays is no longer consecutive; use "
                "replay.eviction=fifo"
            )


def _check_sizes(run: RunConfig, algorithm: OffPolicyConfig) -> None:
    replay, envs, unroll_length = run.replay, run.env.num_envs, algorithm.unroll_length
    if replay.min_size > replay.capacity:
        raise ValueError(
            f"replay.min_size={replay.min_size} is more than replay.capacity={replay.capacity}: the first update would "
            "never come; lower min_size or raise capacity"
        )
    if algorithm.sequence_steps % unroll_length:
        raise ValueError(
            f"sequences of {algorithm.sequence_steps} env_steps (algorithm.name={algorithm.name}) are no multiple of "
            f"algorithm.unroll_length={unroll_length}; change that"
        )
    looks = max(algorithm.steps_ahead, algorithm.sequence_steps)
    held = (unroll_length + looks) * envs
    if replay.capacity < held:
        raise ValueError(
            f"replay.capacity={replay.capacity} is too small for env.num_envs={envs} x ({unroll_length} env_steps of "
            f"algorithm.unroll_length + {looks} that a sample looks ahead); use at least {held}"
        )
    if looks >= unroll_length:  # one trajectory of each environment makes no sample
        first = (
            -(-(looks + 1) // unroll_length) * unroll_length * envs
            if not algorithm.sequence_steps
            else looks * envs
        )
        if replay.min_size < first:
            raise ValueError(
                f"replay.min_size={replay.min_size} is less than the {first} env_steps after which there is a first "
                f"sample: env.num_envs={envs}, of each of which {looks} are needed; use at least {first}"
            )
    fewest = _fewest_envs(run)
    if fewest and algorithm.batch_size * fewest < envs:  # 0: more replay ranks than actors, refused later
        raise ValueError(
            f"algorithm.batch_size={algorithm.batch_size} is too small for ranks.replay={run.ranks.replay}: one of "
            f"them has {fewest} of {envs} environments, and would give less than one sample to a batch; use at least "
            f"{-(-envs // fewest)}, or fewer replay ranks"
        )


def _fewest_envs(run: RunConfig) -> int:
    """Environments of the replay rank that has the fewest: actor i gives to replay rank i modulo ranks.replay."""
    envs, ranks = run.env.num_envs, run.ranks
    per_actor = [envs // ranks.actors + (actor < envs % ranks.actors) for actor in range(ranks.actors)]
    return min(sum(per_actor[shard :: ranks.replay]) for shard in range(ranks.replay))


def _changed(section: Config) -> list[tuple[str, Any]]:
    """Keys whose value is not the default."""
    default = type(section)()
    return [(key, value) for key, value in section if value != getattr(default, key)]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
