"""Recipes and calibrations whose numbers are round."""

from hpcrl.bench.plan.costs import Calibration, Cost, Line
from hpcrl.config import (
    DQNConfig,
    EnvConfig,
    ImpalaConfig,
    LagConfig,
    PPOConfig,
    RanksConfig,
    ReplayConfig,
    RunConfig,
)


def same(seconds):
    """CPU and span."""
    return Cost(seconds, seconds)


def pipeline(actors=1, replay=1, learners=1, max_lag=1, num_envs=8, **algorithm):
    """8 environments, trajectories of 10 env_steps: a batch is 80 of them."""
    return RunConfig(
        name="x",
        env=EnvConfig(id="x", num_envs=num_envs),
        algorithm=ImpalaConfig(unroll_length=10, **algorithm),
        ranks=RanksConfig(actors=actors, replay=replay, learners=learners),
        lag=LagConfig(max_lag=max_lag),
    )


def synchronous(workers=1, num_envs=8):
    return RunConfig(
        name="x",
        scheme="synchronous",
        env=EnvConfig(id="x", num_envs=num_envs),
        algorithm=PPOConfig(unroll_length=10, epochs=2, num_minibatches=2),
        ranks=RanksConfig(workers=workers),
    )


def replayed(actors=1, replay=1, learners=1, samples_per_insert=16.0, **other):
    """32 samples for each update; trajectories of 8 env_steps of 8 environments."""
    return RunConfig(
        name="x",
        env=EnvConfig(id="x", num_envs=8),
        algorithm=DQNConfig(batch_size=32, unroll_length=8),
        ranks=RanksConfig(actors=actors, replay=replay, learners=learners),
        replay=ReplayConfig(samples_per_insert=samples_per_insert, tolerance=2.0),
        **other,
    )


def calibration(act=0.08, learn=0.04, sleep=0.0, message=0.0, trajectories=1.0, **other):
    """A trajectory of 8 environments takes `act` (+ `sleep`), an update with all of a batch `learn`.

    message: of each end of one, where one process has `trajectories` for a batch.
    """
    update = other.pop("update", Line(((8.0, same(learn)),)))
    whole = act * trajectories + learn + message * (2 * trajectories + 2)
    defaults = {
        "environment": Line(((8.0, same(0.001)),)),
        "inference": Line(((8.0, same(0.001)),)),
        "collect": Line(((8.0, Cost(act, act + sleep)),)),
        "update": update,
        "whole": same(whole),
    }
    return Calibration(**(defaults | other))
