"""What an update of samples is said to be trained on, however they are divided over learners."""

import numpy as np
import pytest

from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec, transition_spec
from hpcrl.data.trajectory import TrajectoryLayout
from hpcrl.roles.account import SampledAccount
from hpcrl.roles.batch import normalize_weights

ENV = EnvSpec(
    id="x",
    observation=ArraySpec(shape=(2,), dtype="float32"),
    action=ActionSpec(kind="discrete", size=2),
)


def part(versions, inserted=0, weights=(), largest=1.0, valid=None):
    layout = TrajectoryLayout(transition_spec(ENV, len(versions)))
    found = layout.begin(
        layout.allocate(1, poison=True)[0],
        attempt=1,
        version=0,
        actor=0,
        grant=0,
        envs=range(len(versions)),
    )
    found.fields["parameter_version"][0] = versions
    found.fields["valid"][0] = True if valid is None else valid
    found.fields["weight"][0] = weights or 1.0
    found.header["inserted"], found.header["largest_weight"] = inserted, largest
    return found


def fields_of(parts):
    names = ("parameter_version", "valid")
    return {name: np.concatenate([one.fields[name] for one in parts], axis=1) for name in names}


def trained(updates, learners, env_steps=0):
    """`learners`: the parts of each."""
    accounts = [SampledAccount(index, len(learners)) for index in range(len(learners))]
    for account, parts in zip(accounts, learners, strict=True):
        account.look(updates, fields_of(parts), parts)
    sums = np.sum([account.sums() for account in accounts], axis=0)
    return [account.book(sums, env_steps, again=False) for account in accounts]


@pytest.mark.parametrize(
    "learners",
    [
        [[part([3, 9, 5], 70), part([4], 30)]],
        [[part([3], 70), part([4], 30)], [part([9, 5], 70), part([], 30)]],
        [[part([], 70), part([], 30)], [part([3, 9, 5], 70), part([4], 30)]],
    ],
)
def test_lag_and_env_steps_do_not_depend_on_the_learners(learners):
    """All learners agree; env_steps are those that every shard says it has taken in."""
    for found in trained(10, learners):
        assert found.lag == {"lag_min": 1, "lag_mean": (7 + 1 + 5 + 6) / 4, "lag_max": 7}
        assert (found.env_steps, found.valid_fraction) == (100, 1.0)
        assert not len(found.lag_rows)


def test_what_is_not_valid_counts_nowhere():
    (found,) = trained(10, [[part([3, 9], valid=[False, True])]])
    assert found.lag == {"lag_min": 1, "lag_mean": 1, "lag_max": 1}
    assert found.valid_fraction == 0.5
    (found,) = trained(10, [[part([3], valid=[False])]])
    assert (found.lag, found.valid_fraction) == ({}, 0)


def test_env_steps_never_fall():
    """After a resume a batch may come that was drawn before others were inserted."""
    (found,) = trained(10, [[part([3], 70)]], env_steps=90)
    assert found.env_steps == 90


def test_a_version_of_the_future_is_refused():
    with pytest.raises(RuntimeError, match="lag -1"):
        trained(10, [[part([11])]])


def test_weights_are_divided_by_the_largest_of_all_shards():
    """Which may lie in a part of another learner."""
    parts = [
        part([1, 2], weights=[0.5, 2.0], largest=2.0),
        part([3], weights=[1.0], largest=4.0),
        part([], largest=1),
    ]
    normalize_weights(parts)
    assert [one.fields["weight"][0].tolist() for one in parts] == [[0.125, 0.5], [0.25], []]
