"""What a recurrent policy did is what the learner makes of it: across ends of episodes, of trajectories, and stops."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcrl.algorithms import make_algorithm
from hpcrl.algorithms.one_network import rows
from hpcrl.comm.ranks import Placement
from hpcrl.config import RunConfig
from hpcrl.data.specs import trajectory_spec
from hpcrl.data.trajectory import TrajectoryLayout
from hpcrl.envs import make_env_spec
from hpcrl.roles.collect import Collector
from hpcrl.roles.timers import Timers

COLUMNS = 6
"""One more than there are environments."""


def make_collector(model, env_id, unroll_length, num_groups=1, **kwargs):
    config = RunConfig.parse(
        {
            "name": "test",
            "scheme": "synchronous",
            "env": {"id": env_id, "engine": "toy", "num_envs": 5, "num_groups": num_groups, "kwargs": kwargs},
            "model": {"hidden_sizes": [8], "recurrent_size": 7, **model},
            "algorithm": {"name": "a2c", "unroll_length": unroll_length},
        }
    )
    env = make_env_spec(config.env)
    algorithm = make_algorithm(config, env)
    with torch.no_grad():  # so that what is remembered shows in the actions and values
        algorithm.network.policy_head.weight *= 300
    session = SimpleNamespace(
        config=config,
        rng=lambda placement, purpose: np.random.default_rng(0),
        record=lambda table, rows: None,
        world=SimpleNamespace(waiter=SimpleNamespace(work=lambda: None)),
        cuts=SimpleNamespace(saved=None),
        timers=Timers(),
    )
    placement = Placement("worker", 0, 0)
    layout = TrajectoryLayout(trajectory_spec(env, unroll_length, COLUMNS, algorithm.stored_fields))
    return algorithm, Collector(session, placement, algorithm), layout


def collect(collector, layout, cancelled=lambda: False):
    trajectory = layout.begin(
        layout.allocate(1, poison=True)[0], attempt=0, version=0, actor=0, grant=0, envs=collector.envs
    )
    whole = collector.collect(trajectory, 0, cancelled)
    return {name: torch.from_numpy(array) for name, array in trajectory.fields.items()}, whole


def deviation(log_prob, fields):
    """Largest difference from what the actor stored, over the valid env_steps."""
    return (log_prob - fields["behavior_log_prob"]).abs().masked_fill(~fields["valid"], 0.0).max()


def learn(algorithm, fields):
    """Log-probabilities [T, C] and values [T+1, C]."""
    with torch.no_grad():
        log_prob, _, value = algorithm.evaluate(
            rows(fields["obs"]), rows(fields["action"]), algorithm.memory(fields)
        )
    return log_prob.view(fields["valid"].shape), value.view(fields["obs"].shape[:2])


@pytest.mark.parametrize(("env_id", "kwargs"), [("counting", {"tagged": True}), ("recall", {"delay": 2})])
@pytest.mark.parametrize("unroll_length", [1, 4, 9])
@pytest.mark.parametrize(
    ("model", "num_groups"),
    [({"recurrent": "gru"}, 1), ({"recurrent": "lstm", "shared_torso": False}, 2)],
    ids=["gru", "lstm"],
)
def test_the_learner_sees_the_log_probabilities_of_the_actor(
    env_id, kwargs, unroll_length, model, num_groups
):
    algorithm, collector, layout = make_collector(model, env_id, unroll_length, num_groups, **kwargs)
    fragments = [collect(collector, layout)[0] for _ in range(1 + 24 // unroll_length)]
    resets = 0
    for before, fields in itertools.pairwise([None, *fragments]):
        valid = fields["valid"]
        log_prob, value = learn(algorithm, fields)
        assert deviation(log_prob, fields) < 2e-6
        assert not fields["initial_state"][:, 5:].any() and not valid[:, 5:].any()
        resets += int((~valid[:, :5]).sum())
        if before is not None:  # what an update bootstraps from is what the next one starts with
            torch.testing.assert_close(learn(algorithm, before)[1][-1, :5], value[0, :5])
            began = ~before["valid"][-1, :5]
            assert (fields["initial_state"][0, :5].any(1) == ~began).all()
    assert resets > 10


def test_without_its_state_the_learner_would_see_others():
    """The comparison above has something to compare: each part of the memory matters to it."""
    algorithm, collector, layout = make_collector({"recurrent": "gru"}, "counting", 9, tagged=True)
    collect(collector, layout)
    fields, _ = collect(collector, layout)
    never_reset = fields | {"valid": torch.ones_like(fields["valid"])}
    from_nothing = fields | {"initial_state": torch.zeros_like(fields["initial_state"])}
    for changed in (never_reset, from_nothing):
        log_prob, _ = learn(algorithm, changed)
        assert deviation(log_prob, fields) > 1e-3


@pytest.mark.parametrize("stop_at", range(10))
def test_a_trajectory_that_is_given_up_leaves_the_state_of_the_next(stop_at):
    """Also where the env_step under way is the reset step."""
    algorithm, collector, layout = make_collector({"recurrent": "lstm"}, "counting", 20, 2, tagged=True)
    calls = itertools.count()
    assert not collect(collector, layout, cancelled=lambda: next(calls) == stop_at)[1]
    collector.settle()
    saved = collector.components()["envs"]
    assert (saved["policy_state"].any(1) == (saved["obs"][:, 0] > 0)).all()
    fields, whole = collect(collector, layout)
    assert whole
    np.testing.assert_array_equal(fields["initial_state"][0, :5], saved["policy_state"])
    log_prob, _ = learn(algorithm, fields)
    assert deviation(log_prob, fields) < 2e-6
