"""What a run with a replay memory, or without one, must not say."""

import pytest

from hpcrl.config import AlgorithmConfig
from tests.unit.config.support import message, run_config

WIDE = {"env": {"id": "CartPole-v1", "num_envs": 64}}
R2D2 = {"algorithm": {"name": "r2d2"}, "model": {"recurrent": "gru"}}
PRIORITIZED = {"sampling": "prioritized"}


def dqn(**sections):
    return {"algorithm": {"name": "dqn"} | sections.pop("algorithm", {})} | sections


CONTRADICTIONS = {
    "a memory for ppo": ({"replay": {"capacity": 7}}, ["replay.capacity=7", "algorithm.name=ppo"]),
    "limits for ppo": ({"replay": {"tolerance": 0.5}}, ["replay.tolerance=0.5 has no effect"]),
    "in step": (dqn(scheme="synchronous"), ["scheme=synchronous", "algorithm.name=dqn", "scheme=pipeline"]),
    "a bound of the lag": (dqn(lag={"max_lag": 5}), ["lag.max_lag=5 has no effect", "replay.tolerance"]),
    "data that are dropped": (dqn(lag={"overdue": "drop"}), ["lag.overdue=drop has no effect"]),
    "an injected lag": (dqn(lag={"injection": 1, "max_lag": 1}), ["lag.injection=1"]),
    "seldom published, in turns": (
        dqn(deterministic=True, lag={"publish_every_updates": 5}),
        ["deterministic", "publish_every_updates=1"],
    ),
    "uniform, with alpha": (dqn(replay={"alpha": 0.5}), ["replay.alpha=0.5", "sampling=prioritized"]),
    "uniform, lowest first": (
        dqn(replay={"eviction": "lowest_priority"}),
        ["replay.eviction=lowest_priority", "replay.sampling=uniform"],
    ),
    "more than it holds": (
        dqn(replay={"capacity": 500, "min_size": 501}),
        ["replay.min_size=501", "replay.capacity=500"],
    ),
    "too small for a sample of each environment": (
        dqn(replay={"capacity": 575, "min_size": 100}, **WIDE),
        ["replay.capacity=575", "env.num_envs=64", "at least 576"],
    ),
    "no sample when there should be one": (
        R2D2 | WIDE | {"replay": PRIORITIZED | {"min_size": 7679}},
        ["replay.min_size=7679", "at least 7680"],
    ),
    "a look far ahead": (
        dqn(algorithm={"unroll_length": 2, "n_step": 4}, replay={"min_size": 383}, **WIDE),
        ["replay.min_size=383", "at least 384"],
    ),
    "more shards than actors": (dqn(ranks={"replay": 2}), ["ranks.actors=1", "ranks.replay=2"]),
    "less than a sample of a shard": (
        dqn(algorithm={"batch_size": 3}, ranks={"actors": 3, "replay": 2}, env={"id": "x", "num_envs": 13}),
        ["algorithm.batch_size=3", "ranks.replay=2", "4 of 13", "at least 4"],
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_name_their_keys(case):
    changes, parts = CONTRADICTIONS[case]
    said = message(run_config, **changes)
    for part in parts:
        assert part in said


FINE = {
    "default": dqn(),
    "default values for ppo": {"replay": {"capacity": 100_000}},
    "seldom published": dqn(lag={"publish_every_updates": 50}),
    "in turns": dqn(deterministic=True),
    "prioritized": dqn(replay=PRIORITIZED | {"alpha": 0.5, "eviction": "lowest_priority"}),
    "as small as may be": dqn(replay={"capacity": 576, "min_size": 576}, **WIDE),
    "the first sequence": R2D2 | WIDE | {"replay": PRIORITIZED | {"min_size": 7680}},
    "a look far ahead": dqn(algorithm={"unroll_length": 2, "n_step": 4}, replay={"min_size": 384}, **WIDE),
    "a sample of each shard": dqn(
        algorithm={"batch_size": 4}, ranks={"actors": 3, "replay": 2}, env={"id": "x", "num_envs": 13}
    ),
}


@pytest.mark.parametrize("case", FINE)
def test_what_fits_is_accepted(case):
    run_config(**FINE[case])


class Odd(AlgorithmConfig):
    name: str = "odd"

    @property
    def uses_replay(self):
        return True


def test_a_config_that_does_not_say_what_is_sampled():
    assert "hpcrl.config.OffPolicyConfig" in message(run_config, algorithm=Odd())
