"""Environments, and a network, with a fault that `hpcrl diagnose` should see."""

import os
from dataclasses import replace

import numpy as np
import torch

from hpcrl.envs.toy import Counting, Outcome
from hpcrl.envs.toy_vector import ToyVectorEnv


class Long(Counting):
    """Counting, in episodes of 300 env_steps."""

    def advance(self, actions, rows):
        self._obs[rows, 0] += 1
        step = self._obs[:, 0].astype(np.float64)
        return Outcome(step, np.zeros(len(step), bool), rows & (step == 300))


def make_long(num_envs, seeds):
    return ToyVectorEnv(Long(range(num_envs), seeds), num_envs)


class OddEnv(ToyVectorEnv):
    """Counting, whose rewards are zero on rank 2."""

    def recv(self):
        step = super().recv()
        if os.environ.get("PMI_RANK") != "2":
            return step
        return replace(step, reward=0 * step.reward, episode_return=0 * step.episode_return)


def make_odd(num_envs, seeds):
    return OddEnv(Counting(range(num_envs), seeds), num_envs)


class SameStepEnv(ToyVectorEnv):
    """Counting, which marks no reset step: as if the one after an end was another env_step."""

    def recv(self):
        step = super().recv()
        return replace(step, valid=np.ones_like(step.valid))


def make_same_step(num_envs, seeds):
    return SameStepEnv(Counting(range(num_envs), seeds), num_envs)


class HugeEnv(ToyVectorEnv):
    """Counting, whose rewards are finite, but not the sum of two."""

    def recv(self):
        step = super().recv()
        return replace(step, reward=np.full_like(step.reward, 3e38))


def make_huge(num_envs, seeds):
    return HugeEnv(Counting(range(num_envs), seeds), num_envs)


class Drifting(torch.nn.Module):
    """A layer that changes its weights whenever it is trained, in each process in another way."""

    def __init__(self, observation):
        super().__init__()
        self.layer = torch.nn.Linear(observation.shape[0], 4)

    def forward(self, obs):
        features = self.layer(obs)
        if features.requires_grad:
            features.register_hook(self._drift)
        return features

    def _drift(self, gradient):
        with torch.no_grad():
            self.layer.weight.add_(1e-6 * (os.getpid() % 1000 + 1))
