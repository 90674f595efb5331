"""IMPACT (Luo et al. 2020), also known as APPO: PPO around a target network, on batches that are used several times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.base import Batch, Reducer, UpdateResult
from hpcrl.algorithms.ppo import PPO, Center, Samples
from hpcrl.algorithms.target import Target
from hpcrl.config import AlgorithmConfig, ImpactConfig, ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.functional.losses import clipped_target_log_prob
from hpcrl.functional.returns import Gae, vtrace
from hpcrl.models.recurrent import Memory


class Impact(PPO):
    """The trust interval lies around the target network, whose values and V-trace give the advantages, too.

    How often a batch is used is not decided here: every use is an update, with advantages of its own. Where the target
    network is the policy that acted, it is PPO.

    Attributes:
        target: the target network.
    """

    Config: ClassVar[type[AlgorithmConfig]] = ImpactConfig
    config: ImpactConfig

    def __init__(self, config: ImpactConfig, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        super().__init__(config, env, model, seed)
        self.target = Target(self.parameters)

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """As PPO.update; the target network follows before it, where it is time."""
        if batch.update % self.config.target_update_updates == 0:
            self.target.follow()
        return super().update(batch, reducer, progress)

    def center(self, obs: Tensor, action: Tensor, behavior_log_prob: Tensor, memory: Memory | None) -> Center:
        """As PPO.center, with the target network: around its probabilities, or those when it acted over the cap."""
        target = self.log_probs(obs, action, memory)
        around = clipped_target_log_prob(target, behavior_log_prob, self.config.target_ratio_cap)
        return Center(around, torch.ones_like(around), target - behavior_log_prob)

    def estimate(self, fields: Mapping[str, Tensor], values: Tensor, log_rho: Tensor) -> Gae:
        """As PPO.estimate, by V-trace: value targets vs, advantages vs - V, which is GAE where log_rho is 0."""
        targets, _ = vtrace(
            self.training_reward(fields),
            values[:-1],
            values[1:],
            fields["terminated"],
            fields["truncated"],
            log_rho=log_rho.masked_fill(~fields["valid"], 0.0),
            gamma=self.config.gamma,
            lambda_=self.config.gae_lambda,
            rho_bar=self.config.rho_bar,
            c_bar=self.config.c_bar,
        )
        return Gae(targets - values[:-1], targets)

    def _samples(self, batch: Batch, reducer: Reducer) -> Samples:
        with self.target.using():
            return super()._samples(batch, reducer)

    def move(self, device: torch.device) -> None:
        """As Algorithm.move."""
        super().move(device)
        self.target.move(device)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What PPO has, and the target network, as copies."""
        return super().state() | self.target.state()

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state` bit for bit. Raises ValueError naming a missing or misshaped entry."""
        super().load_state(state)
        self.target.load_state(state)
