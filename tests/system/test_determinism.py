"""Equal seeds give bit-equal weights, however the processes were scheduled; other seeds give others."""

import contextlib

import pytest

from tests.system.support import TOY, WITH_TESTS, start

CHAIN = TOY | {
    "env": {"id": "tests.system.timed_envs:make", "engine": "custom", "num_envs": 6},
    "evaluation": {"episodes": 0},
}
"""Unlike in the counting environment, what is seen depends on what is done."""

ONE_LATE_TWO_OF_EACH = ("deterministic=true", "ranks.actors=2", "ranks.learners=2")
LOCKSTEP = ("deterministic=true", "lag.max_lag=0")
PPO = (
    "scheme=synchronous",
    'algorithm={"name": "ppo", "unroll_length": 8, "epochs": 2, "num_minibatches": 2}',
    "ranks.workers=2",
)


def weights(folder, *variants):
    """Weights of several runs that go on side by side and so disturb each other."""
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(start(folder / str(index), *settings, recipe=CHAIN, environ=WITH_TESTS))
            for index, settings in enumerate(variants)
        ]
        return [running.wait().weights() for running in runs]


@pytest.mark.parametrize(
    "settings", [PPO, ONE_LATE_TWO_OF_EACH], ids=["synchronous", "one late, two of each"]
)
def test_equal_seeds_are_bit_equal(tmp_path, settings):
    first, second = weights(tmp_path, settings, settings)
    assert first == second


def test_in_lockstep_one_actor_leaves_nothing_to_chance(tmp_path):
    """max_lag=0 fixes the version of every trajectory, one actor their order, as in one rank; and the seed matters."""
    variants = (LOCKSTEP, ("lag.max_lag=0",), ("scheme=synchronous",), (*LOCKSTEP, "seed=1"))
    strict, loose, synchronous, other = weights(tmp_path, *variants)
    assert strict == loose == synchronous != other
