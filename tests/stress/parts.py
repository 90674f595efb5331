"""An environment whose every env_step has a number of its own, and an algorithm that notes which were trained."""

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from hpcrl.algorithms import Algorithm, UpdateResult
from hpcrl.config import AlgorithmConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.envs.toy_vector import Outcome, ToyVectorEnv
from hpcrl.models.flat import FlatParameters


@dataclass
class Notes:
    """What this process saw in the present run; emptied before each."""

    seconds_per_step: float = 0.0
    trained: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(update, environment, number before its first env_step, number after its last) of each column trained."""


NOTES = Notes()


class Numbered:
    """Observation: [who, number of env_steps since the start]. Episodes never end."""

    row_state = ("_obs",)

    def __init__(self, seeds):
        self.spec = EnvSpec(
            id="numbered",
            observation=ArraySpec(shape=(2,), dtype="int64"),
            action=ActionSpec(kind="discrete", size=2),
        )
        self._obs = np.stack([np.array(seeds) % 2**62, np.zeros(len(seeds), np.int64)], axis=1)

    def restart(self, rows):
        """Numbers go on."""

    def advance(self, actions, rows):
        time.sleep(NOTES.seconds_per_step)
        self._obs[:, 1] += 1
        no = np.zeros(len(rows), bool)
        return Outcome(np.ones(len(rows)), no, no)

    def observe(self):
        return self._obs.copy()


def make(num_envs, seeds):
    return ToyVectorEnv(Numbered(seeds), num_envs)


class Recorder(Algorithm):
    """Sums something over the learners, as any algorithm does, and notes what it was given."""

    Config = AlgorithmConfig

    def __init__(self, config, env, model, seed):
        self.parameters = FlatParameters(torch.nn.Linear(7, 3))
        self.parameters.numpy[...] = 0

    def act(self, obs, rng, *, greedy=False):
        assert (self.parameters.numpy == self.parameters.numpy[0]).all(), "two versions in one vector"
        return {"action": np.zeros(len(obs), np.int64)}

    def update(self, batch, reducer, progress):
        obs = batch.fields["obs"].numpy()
        who, number = obs[..., 0], obs[..., 1]
        used = np.flatnonzero(batch.fields["valid"].numpy().all(axis=0))
        assert (who == who[0]).all() and (np.diff(number[:, used], axis=0) == 1).all(), "a trajectory is torn"
        NOTES.trained += [
            (batch.update, int(who[0, column]), int(number[0, column]), int(number[-1, column]))
            for column in used
        ]
        columns = torch.tensor([float(who.shape[1]), 1.0])
        reducer.sum_(columns)
        assert int(columns[0]) == batch.total_columns
        self.parameters.numpy[...] = batch.update + 1
        return UpdateResult(metrics={}, applied=True)

    def state(self):
        return {"parameters": self.parameters.numpy.copy()}

    def load_state(self, state):
        self.parameters.load(state["parameters"])
