"""What the sections of a run must not say together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcrl.config.algorithms import SurrogateConfig
from hpcrl.config.continuous import ContinuousConfig, check_continuous
from hpcrl.config.off_policy import ActionValueConfig, R2D2Config
from hpcrl.config.replay_consistency import check_replay

if TYPE_CHECKING:
    from hpcrl.config.run import RunConfig


def check_consistency(run: RunConfig) -> None:
    """Raises ValueError that names the keys which contradict each other, and what is allowed. Pure."""
    acting = run.num_acting_ranks
    if run.env.num_envs < acting * run.env.num_groups:
        raise ValueError(
            f"env.num_envs={run.env.num_envs} is too few for {acting} acting ranks x "
            f"env.num_groups={run.env.num_groups}; use at least {acting * run.env.num_groups}"
        )
    if isinstance(run.algorithm, SurrogateConfig):
        _check_minibatches(run, run.algorithm)
    _check_device(run)
    _check_precision(run)
    _check_gradients(run)
    _check_reuse(run)
    check_replay(run)
    if run.algorithm.uses_replay:
        _check_replayed(run)
    if isinstance(run.algorithm, ActionValueConfig):
        _check_action_values(run, run.algorithm)
    if isinstance(run.algorithm, ContinuousConfig):
        check_continuous(run, run.algorithm)
    if run.faults.actor_death == "continue" and (run.deterministic or run.scheme == "synchronous"):
        key = "deterministic=true" if run.deterministic else "scheme=synchronous"
        raise ValueError(
            f"faults.actor_death=continue is not there with {key}, where every rank's part counts; "
            "use faults.actor_death=end"
        )
    if run.scheme == "pipeline":
        _check_pipeline(run)
    else:
        _check_synchronous(run)


def _check_precision(run: RunConfig) -> None:
    device, gradients = run.ranks.learner_device, run.algorithm.sends_gradients
    if run.model.precision == "float16" and (device != "cuda" or gradients):
        why = "gradients that actors compute" if gradients else f"ranks.learner_device={device}"
        raise ValueError(
            f"model.precision=float16 is not there with {why}: on a CPU its convolutions take many times as "
            "long as in float32; use model.precision=bfloat16, or ranks.learner_device=cuda"
        )


def _check_synchronous(run: RunConfig) -> None:
    lag, workers = run.lag, run.ranks.workers
    if run.algorithm.batch_trajectories not in (None, workers):
        raise ValueError(
            f"algorithm.batch_trajectories={run.algorithm.batch_trajectories}: in scheme synchronous each of "
            f"the {workers} ranks gives one trajectory per update; leave it null"
        )
    if lag.publish_every_seconds is not None:
        raise ValueError(
            f"lag.publish_every_seconds={lag.publish_every_seconds:g}: nothing is published in scheme synchronous; "
            "leave it null"
        )
    if lag.injection and workers > 1:
        raise ValueError(
            f"lag.injection={lag.injection} is for runs of one process, not of ranks.workers={workers}; use "
            "ranks.workers=1 or lag.injection=0"
        )
    if lag.injection > lag.max_lag:
        raise ValueError(
            f"lag.injection={lag.injection} makes data older than lag.max_lag={lag.max_lag} allows; raise "
            f"lag.max_lag to {lag.injection}"
        )


def _check_minibatches(run: RunConfig, algorithm: SurrogateConfig) -> None:
    """None of them may be empty: they consist of env_steps, or of columns where the policy is recurrent."""
    columns = run.env.num_envs * run.batch_trajectories // run.num_acting_ranks
    env_steps = algorithm.unroll_length * run.env.num_envs * run.batch_trajectories // run.num_acting_ranks
    recurrent = run.model.recurrent != "none"
    most, what, also = (
        (columns, f"columns of an update (model.recurrent={run.model.recurrent})", "")
        if recurrent
        else (env_steps, "env_steps of an update", "algorithm.unroll_length or ")
    )
    if algorithm.num_minibatches > most:
        raise ValueError(
            f"algorithm.num_minibatches={algorithm.num_minibatches} is more than the {most} {what}; "
            f"use fewer, or raise {also}env.num_envs"
        )


def _check_gradients(run: RunConfig) -> None:
    """Where actors send gradients, one learner applies them one by one."""
    algorithm = run.algorithm
    if not algorithm.sends_gradients:
        return
    if run.scheme == "synchronous":
        raise ValueError(
            f"algorithm.name={algorithm.name} sends gradients to a learner that waits for nobody, which scheme="
            "synchronous does not have; use scheme=pipeline (in step it is algorithm.name=a2c)"
        )
    for key, value in (
        ("model.normalize_observations", run.model.normalize_observations),
        ("algorithm.normalize_returns", algorithm.normalize_returns),
    ):
        if value:
            raise ValueError(
                f"{key}=true is not there with algorithm.name={algorithm.name}, whose learner sees no env_steps to "
                f"count; use {key}=false or algorithm.name=a2c"
            )
    for key, count in (
        ("ranks.learners", run.ranks.learners),
        ("algorithm.batch_trajectories", algorithm.batch_trajectories),
    ):
        if count not in (None, 1):
            raise ValueError(
                f"{key}={count}: with algorithm.name={algorithm.name} one learner applies every gradient as it "
                f"comes; use {key}=1"
            )


def _check_reuse(run: RunConfig) -> None:
    """The lag of the last use of a batch has to be within the bound, too."""
    added = run.lag.max_lag - run.max_lag_when_new
    batches, uses = run.algorithm.buffer
    if run.lag.injection and uses > 1:
        raise ValueError(
            f"lag.injection={run.lag.injection} is not there where batches are used again; use "
            "algorithm.batch_uses=1 or lag.injection=0"
        )
    if run.max_lag_when_new < 0:
        more = "" if run.scheme == "synchronous" else f", {added + 1} if actors are to work meanwhile"
        raise ValueError(
            f"lag.max_lag={run.lag.max_lag} is less than (algorithm.batch_uses={uses} - 1) x "
            f"algorithm.buffer_batches={batches}: a batch is trained on {added} updates after it was new; use "
            f"lag.max_lag={added} or more{more}"
        )


def _check_replayed(run: RunConfig) -> None:
    """What needs every env_step exactly once, or in the order in which it came."""
    algorithm = run.algorithm
    for key, value in (
        ("model.normalize_observations", run.model.normalize_observations),
        ("algorithm.normalize_returns", algorithm.normalize_returns),
    ):
        if value:
            raise ValueError(
                f"{key}=true is not there with algorithm.name={algorithm.name}: it counts env_steps once, and a replay "
                f"memory gives them many times; use {key}=false"
            )
    if algorithm.batch_trajectories is not None:
        raise ValueError(
            f"algorithm.batch_trajectories={algorithm.batch_trajectories} has no effect with algorithm.name="
            f"{algorithm.name}, whose updates are of algorithm.batch_size; leave it null"
        )


def _check_action_values(run: RunConfig, algorithm: ActionValueConfig) -> None:
    name, recurrent = algorithm.name, run.model.recurrent
    if isinstance(algorithm, R2D2Config) and recurrent == "none":
        raise ValueError(
            f"model.recurrent=none does not fit algorithm.name={name}, which learns from sequences for a recurrent "
            "network; use model.recurrent=lstm or gru, or algorithm.name=apex"
        )
    if not isinstance(algorithm, R2D2Config) and recurrent != "none":
        raise ValueError(
            f"model.recurrent={recurrent} does not fit algorithm.name={name}, which learns from single transitions; "
            "use algorithm.name=r2d2, or model.recurrent=none"
        )
    if not run.model.shared_torso:
        raise ValueError(
            f"model.shared_torso=false does not fit algorithm.name={name}, which has no policy beside its values; use "
            "model.shared_torso=true"
        )
    if algorithm.gives_priorities and run.replay.sampling != "prioritized":
        raise ValueError(
            f"replay.sampling={run.replay.sampling} does not fit algorithm.name={name}, whose actors compute "
            "priorities; use replay.sampling=prioritized (with replay.alpha=0 all are equal), or algorithm.name=dqn"
        )


def _check_device(run: RunConfig) -> None:
    """What sums by torch.distributed, and gradients on a device, cannot do."""
    device, reduction = run.ranks.learner_device, run.reduction
    if device == "cpu" and reduction.form != "torch":
        return
    why = f"ranks.learner_device={device}" if device != "cpu" else "reduction.form=torch"
    other = "ranks.learner_device=cpu" if device != "cpu" else "reduction.form=auto"
    for key, value, allowed in (
        ("compression", reduction.compression, "none"),
        ("shard_optimizer", reduction.shard_optimizer, False),
        ("exchange", "all_gather" if reduction.exchange == "auto" else reduction.exchange, "all_gather"),
    ):
        if value != allowed:
            raise ValueError(
                f"reduction.{key}={str(value).lower()} is not there with {why}; use {other} or "
                f"reduction.{key}={str(allowed).lower()}"
            )


def _check_pipeline(run: RunConfig) -> None:
    ranks, lag, batch = run.ranks, run.lag, run.batch_trajectories
    replayed = run.algorithm.uses_replay
    added = lag.max_lag - run.max_lag_when_new
    reused = f" more than the {added} updates that batches are reused for" if added else ""
    for key, count in (("ranks.actors", ranks.actors), ("algorithm.batch_trajectories", batch)):
        if count < ranks.replay:
            raise ValueError(
                f"{key}={count} is less than ranks.replay={ranks.replay}: a replay rank would have nothing "
                f"to hold; use ranks.replay <= {count}"
            )
    if run.deterministic and run.max_lag_when_new > 1:
        raise ValueError(
            f"deterministic=true needs lag.max_lag of 0 or 1{reused}, not {lag.max_lag}: only then is the "
            "parameter version of every trajectory fixed in advance"
        )
    if run.deterministic and lag.overdue == "drop":
        raise ValueError("deterministic=true needs lag.overdue=wait: what is dropped depends on timing")
    if run.max_lag_when_new < lag.publish_every_updates - 1 and not replayed:
        raise ValueError(
            f"lag.max_lag={lag.max_lag} is less than lag.publish_every_updates - 1 = "
            f"{lag.publish_every_updates - 1}{reused}: the actors would wait for ever; raise max_lag"
        )
    if run.deterministic and lag.publish_every_updates > 1:
        raise ValueError("deterministic=true needs lag.publish_every_updates=1")
    if run.deterministic and lag.publish_every_seconds is not None:
        raise ValueError(
            f"deterministic=true needs lag.publish_every_seconds=null, not {lag.publish_every_seconds:g}: the "
            "clock would decide which versions there are"
        )
    if lag.publish_every_seconds is not None and lag.publish_every_updates == 1:
        raise ValueError(
            f"lag.publish_every_seconds={lag.publish_every_seconds:g} changes nothing where every update is "
            "published; raise lag.publish_every_updates too, or leave it null"
        )
    if lag.injection:
        raise ValueError(
            f"lag.injection={lag.injection} is not there in scheme pipeline, which has a lag of its own; use "
            "scheme=synchronous with ranks.workers=1, or lag.injection=0"
        )
