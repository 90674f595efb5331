"""What the algorithms share that learn from a replay memory: target network, priorities, one gradient step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hpcrl.algorithms.base import Batch, Reducer, UpdateResult, Vector
from hpcrl.algorithms.gradient import GradientStep
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.one_network import OneNetworkAlgorithm, columns
from hpcrl.algorithms.target import Target
from hpcrl.config import ModelConfig, OffPolicyConfig
from hpcrl.data.specs import EnvSpec


class Loss(NamedTuple):
    """Of some columns [T, C] of a batch."""

    total: Tensor
    """sum over the valid env_steps that are trained on, each times the weight of its column; the gradient flows"""
    samples: int
    """valid env_steps that are trained on"""
    priorities: Tensor
    """float32 [C], |TD error|; without a gradient"""


class OffPolicyAlgorithm(OneNetworkAlgorithm):
    """Base of those with one network, a target network that follows it, and one gradient step per update.

    Attributes:
        metric_names: what `loss` adds to the metrics, in its order.
        target: the target network.
    """

    metric_names: ClassVar[tuple[str, ...]]
    config: OffPolicyConfig

    def __init__(
        self, config: OffPolicyConfig, env: EnvSpec, model: ModelConfig, seed: int, network: nn.Module
    ) -> None:
        super().__init__(config, env, model, seed, network)
        self.target = Target(self.parameters)

    @abstractmethod
    def loss(self, fields: Mapping[str, Tensor], metrics: Metrics) -> Loss:
        """The loss of some columns of a batch, transitions or sequences; adds to `metrics`. Local."""

    def update(self, batch: Batch, reducer: Reducer, progress: float) -> UpdateResult:
        """Step along the mean of the loss; then the target network follows. Collective: two calls of the reducer."""
        metrics = Metrics(self.metric_names, self.parameters.vector.device)
        step = self.begin(batch, reducer)
        priorities = self.accumulate(step, batch.fields, metrics)
        result = self.finish(step, batch, reducer, progress, metrics)
        if not result.applied:
            return result
        self.follow(batch.update)
        return replace(result, priorities=priorities)

    def accumulate(self, step: GradientStep, fields: Mapping[str, Tensor], metrics: Metrics) -> Vector:
        """Add the gradient of the loss of all columns, a part at a time; their priorities [C]. Local."""
        num_columns = fields["reward"].shape[1]
        stride = max(1, self.chunk_rows // (self.config.sequence_steps + 1))
        priorities = np.zeros(num_columns, np.float32)
        for start in range(0, num_columns, stride):
            stop = min(start + stride, num_columns)
            loss = self.loss(columns(fields, start, stop), metrics)
            step.add(loss.total, loss.samples, loss.total.item(), last=stop == num_columns)
            priorities[start:stop] = loss.priorities.cpu().numpy()
        return priorities

    def follow(self, update: int) -> None:
        """Let the target network follow after an update (0: the first), where it is time."""
        if (update + 1) % self.config.target_update_updates == 0:
            self.target.follow(self.config.target_tau)

    def training_reward(self, reward: Tensor) -> Tensor:
        """Rewards as they are trained on, of a trajectory as actors collect it: clipped, times reward_scale."""
        clip, scale = self.config.reward_clip, self.config.reward_scale
        reward = reward if clip is None else reward.clamp(-clip, clip)
        return reward if scale == 1.0 else reward * scale

    def move(self, device: torch.device) -> None:
        """As Algorithm.move."""
        super().move(device)
        self.target.move(device)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What OneNetworkAlgorithm has, and the target network, as copies."""
        return super().state() | self.target.state()

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """As OneNetworkAlgorithm.load_state."""
        super().load_state(state)
        self.target.load_state(state)
