"""What the algorithms share that act by the values of a few discrete actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hpcrl.algorithms.base import State, Vector
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.off_policy import Loss, OffPolicyAlgorithm
from hpcrl.config import ActionValueConfig, ModelConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.functional.losses import huber_loss
from hpcrl.functional.q_learning import epsilon_greedy, greedy_value
from hpcrl.models.q_network import QNetwork


class ActionValueAlgorithm(OffPolicyAlgorithm):
    """Takes the action of the largest value, or now and then a random one.

    It learns from single transitions, along their weighted Huber loss, with the targets of DQN (Mnih et al. 2015) or
    double DQN (van Hasselt et al. 2016), n steps ahead.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("value_loss", "q_value", "q_target", "td_error")
    config: ActionValueConfig
    network: QNetwork

    def __init__(self, config: ActionValueConfig, env: EnvSpec, model: ModelConfig, seed: int) -> None:
        super().__init__(config, env, model, seed, QNetwork(env, model, seed, dueling=config.dueling))

    def act(
        self,
        obs: npt.NDArray[Any],
        rng: np.random.Generator,
        *,
        state: State | None = None,
        greedy: bool = False,
        exploration: Vector | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Choose `action` for obs [B, ...]: the best, with probability `exploration` [B] a random allowed one. Local.

        A recurrent network needs its `state` [B, size] and gives the one after; actions do not change it.
        """
        if state is None and self.network.state_size:
            raise ValueError("a recurrent network needs a state: `initial_state`, then what `act` gave last")
        with torch.inference_mode():
            values, after = self.network.step(self.here(obs), None if state is None else self.here(state))
            chosen = {} if after is None else {"state": self.host(after)}
        return {
            "action": epsilon_greedy(self.host(values), None if greedy else exploration, rng),
            **chosen,
        }

    def loss(self, fields: Mapping[str, Tensor], metrics: Metrics) -> Loss:
        """As OffPolicyAlgorithm.loss, of transitions [1, C]."""
        one = {name: values[0] for name, values in fields.items()}
        valid, next_obs = one["valid"], one["next_obs"]
        with torch.no_grad():
            with self.target.using():
                values = self.network(next_obs)
            learned = self.network(next_obs) if self.config.double else values
            reward = one["reward"].masked_fill(~valid, 0.0)
            target = reward + one["discount"] * self.next_value(values, learned)
        value = self.network(one["obs"]).gather(1, one["action"].unsqueeze(1)).squeeze(1)
        losses = (one["weight"] * huber_loss(value, target)).masked_fill(~valid, 0.0)
        self.measure(metrics, valid, losses, value, target)
        errors = (target - value.detach()).abs().masked_fill(~valid, 0.0)
        return Loss(losses.sum(), int(valid.sum()), errors)

    def next_value(self, values: Tensor, learned: Tensor) -> Tensor:
        """What the target network's `values` [..., actions] say of an observation; `learned`: of the learned one."""
        return greedy_value(values, learned if self.config.double else values)

    def measure(self, metrics: Metrics, valid: Tensor, losses: Tensor, value: Tensor, target: Tensor) -> None:
        """Add to the metrics; all [N], `losses` as they are trained on."""
        mask, value = valid.to(torch.float32), value.detach()
        metrics.add(mask, losses, value, target, (target - value).abs())
        metrics.add_values(mask, value, target)
