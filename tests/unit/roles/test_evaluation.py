"""The evaluation carries what the policy remembers from one env_step to the next, within each episode."""

from types import SimpleNamespace

import numpy as np

from hpcrl.config import RunConfig
from hpcrl.roles.evaluation import evaluate
from hpcrl.roles.timers import Timers


class Counter:
    """Remembers how many env_steps it has acted on since the episode began, and compares it with what it sees."""

    def __init__(self):
        self.seen = []

    def initial_state(self, num_envs):
        return np.zeros((num_envs, 1), np.float32)

    def to_env(self, action):
        return action

    def act(self, obs, rng, *, state, greedy):
        self.seen.append((state[:, 0].tolist(), obs[:, 1].tolist()))
        return {"action": np.zeros(len(obs), np.int64), "state": state + 1}


def test_every_life_is_acted_on_from_its_own_beginning():
    config = RunConfig.parse(
        {
            "name": "test",
            "env": {"id": "lives", "engine": "toy", "kwargs": {"episodic_life": True}},
            "algorithm": {"name": "a2c"},
            "evaluation": {"episodes": 2},
        }
    )
    waiter = SimpleNamespace(work=lambda: None)
    session = SimpleNamespace(
        config=config,
        report=lambda text: None,
        world=SimpleNamespace(waiter=waiter),
        timers=Timers(),
        control=SimpleNamespace(poll=lambda: None, stop_requested=False),
        poll_records=lambda: None,
        record=lambda table, rows: None,
    )
    policy = Counter()
    evaluate(session, None, policy, 1, 1)
    assert len(policy.seen) == 14
    for remembered, step_of_life in policy.seen:
        assert remembered == step_of_life
