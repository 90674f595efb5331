"""R2D2 (Kapturowski et al. 2019): Ape-X with a recurrent network, from sequences of experience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hpcrl.algorithms.apex import Apex
from hpcrl.algorithms.base import State
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.off_policy import Loss
from hpcrl.algorithms.one_network import rows
from hpcrl.config import AlgorithmConfig, R2D2Config
from hpcrl.functional.losses import value_loss
from hpcrl.functional.q_learning import sequence_priority
from hpcrl.models.recurrent import Memory, episode_begins


class R2D2(Apex):
    """Both networks begin a sequence with the state that the actor had there, and burn it in; then come the losses.

    The first observation after a reset step begins an episode, in the middle of a sequence too.
    """

    Config: ClassVar[type[AlgorithmConfig]] = R2D2Config
    config: R2D2Config

    def initial_state(self, num_envs: int) -> State | None:
        """Zeros [num_envs, size]; None where model.recurrent is none, which is refused."""
        size = self.network.state_size
        return np.zeros((num_envs, size), np.float32) if size else None

    def trajectory_values(self, fields: Mapping[str, Tensor]) -> Tensor:
        """As Apex.trajectory_values, from the state at the beginning."""
        return self._unroll(fields["obs"], fields["initial_state"][0], episode_begins(fields["valid"]))

    def loss(self, fields: Mapping[str, Tensor], metrics: Metrics) -> Loss:
        """As OffPolicyAlgorithm.loss, of sequences [burn_in_steps + trained_steps, C]."""
        burn_in = self.config.burn_in_steps
        begins = episode_begins(fields["valid"])
        obs, stored = fields["obs"], Memory(fields["initial_state"][0], begins)
        trained = {
            name: fields[name][burn_in:] for name in ("action", "reward", "terminated", "truncated", "valid")
        }
        with torch.no_grad():
            with self.target.using():
                values = self._unroll(obs[burn_in:], self._burned_in(obs, stored), begins[burn_in:])
            state = self._burned_in(obs, stored)
        learned = self._unroll(obs[burn_in:], state, begins[burn_in:])
        target, valid = self.sequence_targets(trained, values, learned.detach()), trained["valid"]
        value = learned[:-1].gather(-1, trained["action"].unsqueeze(-1)).squeeze(-1)
        losses = (fields["weight"] * value_loss(value, target)).masked_fill(~valid, 0.0)
        self.measure(metrics, rows(valid), rows(losses), rows(value), rows(target))
        priorities = sequence_priority(target - value.detach(), valid, self.config.priority_eta)
        return Loss(losses.sum(), int(valid.sum()), priorities)

    def _burned_in(self, obs: Tensor, stored: Memory) -> Tensor:
        """The state [C, size] of the network that is used now after the first burn_in_steps observations."""
        burn_in = self.config.burn_in_steps
        return self.network.after(rows(obs[:burn_in]), stored) if burn_in else stored.state

    def _unroll(self, obs: Tensor, state: Tensor, begins: Tensor) -> Tensor:
        """Q [L, C, actions] of obs [L, C, ...], from the state [C, size] before the first."""
        values: Tensor = self.network(rows(obs), Memory(state, begins))
        return values.view(*obs.shape[:2], -1)
