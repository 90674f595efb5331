"""The gradient of a whole update against one computed step by step from the formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal

from hpcrl.algorithms import Batch, LocalReducer
from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm
from hpcrl.config import A2CConfig, DecoupledPPOConfig, ImpactConfig, ImpalaConfig, PPOConfig
from hpcrl.data.specs import EnvSpec
from hpcrl.models.action_distributions import Gaussian
from tests.unit.algorithms.support import CONTINUOUS, DISCRETE, build, random_batch
from tests.unit.functional.test_returns import GAMMA, Arrays, slow_sums

CONFIGS = {
    "a2c": A2CConfig(gamma=GAMMA, max_grad_norm=1e6, gae_lambda=0.9),
    "decoupled_ppo": DecoupledPPOConfig(
        gamma=GAMMA, max_grad_norm=1e6, epochs=1, num_minibatches=1, behavior_weight_cap=1.2
    ),
    "impact": ImpactConfig(
        gamma=GAMMA, max_grad_norm=1e6, num_minibatches=1, rho_bar=1.2, c_bar=0.9, target_ratio_cap=1.1
    ),
    "impala": ImpalaConfig(
        gamma=GAMMA, max_grad_norm=1e6, rho_bar=1.2, c_bar=0.9, pg_rho_bar=1.1, lambda_=0.95
    ),
    "ppo": PPOConfig(gamma=GAMMA, max_grad_norm=1e6, epochs=1, num_minibatches=1, dual_clip=1.3),
}
BETA1 = 0.9


def policy_of(algorithm: ActorCriticAlgorithm, parameters: Tensor) -> Distribution:
    distribution = algorithm.network.distribution
    if isinstance(distribution, Gaussian):
        return Independent(Normal(parameters, distribution.log_std.exp()), 1)
    return Categorical(logits=parameters)


def column(batch: Batch, values: Tensor, log_rho: Tensor, b: int) -> Arrays:
    fields = {name: entry.numpy()[:, b : b + 1] for name, entry in batch.fields.items()}
    return {
        "reward": np.where(fields["valid"], fields["reward"], 0.0),
        "value": values[:-1, b : b + 1].detach().double().numpy(),
        "next_value": values[1:, b : b + 1].detach().double().numpy(),
        "terminated": fields["terminated"],
        "truncated": fields["truncated"],
        "log_rho": np.where(fields["valid"], log_rho[:, b : b + 1].detach().double().numpy(), 0.0),
    }


def impact_factors(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Value targets and advantages of one column."""
    config = CONFIGS["impact"]
    weight = np.exp(arrays["log_rho"][:, 0])
    factors = GAMMA * config.gae_lambda * np.minimum(config.c_bar, weight)
    advantages = slow_sums(arrays, 0, np.minimum(config.rho_bar, weight), factors)
    return advantages + arrays["value"][:, 0], advantages


def impala_factors(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Value targets and advantages of one column."""
    config = CONFIGS["impala"]
    weight = np.exp(arrays["log_rho"][:, 0])
    factors = GAMMA * config.lambda_ * np.minimum(config.c_bar, weight)
    targets = arrays["value"][:, 0] + slow_sums(arrays, 0, np.minimum(config.rho_bar, weight), factors)
    following = arrays["next_value"][:, 0].copy()
    for t in range(len(following) - 1):
        if not (arrays["terminated"][t, 0] or arrays["truncated"][t, 0]):
            following[t] = targets[t + 1]
    bootstrap = np.where(arrays["terminated"][:, 0], 0.0, GAMMA * following)
    step = arrays["reward"][:, 0] + bootstrap - arrays["value"][:, 0]
    return targets, np.minimum(config.pg_rho_bar, weight) * step


def gae_factors(arrays: Arrays, lambda_: float) -> tuple[np.ndarray, np.ndarray]:
    length = len(arrays["reward"])
    advantages = slow_sums(arrays, 0, np.ones(length), np.full(length, GAMMA * lambda_))
    return advantages + arrays["value"][:, 0], advantages


def policy_loss(name: str, log_prob: Tensor, log_rho: Tensor, advantage: float) -> Tensor:
    if name in ("a2c", "impala"):
        return -log_prob * advantage
    if name == "decoupled_ppo":  # at the policy around which its interval lies, nothing is clipped
        return -log_prob * advantage * min(float(log_rho.detach().exp()), CONFIGS[name].behavior_weight_cap)
    config = CONFIGS[name]
    ratio = log_rho.exp()
    if name == "impact":  # the target network is the learned one here
        ratio = ratio * min(float((-log_rho.detach()).exp()), config.target_ratio_cap)
    clipped = ratio.clamp(1 - config.clip_epsilon, 1 + config.clip_epsilon)
    objective = torch.min(ratio * advantage, clipped * advantage)
    if advantage < 0 and config.dual_clip is not None:
        objective = torch.max(objective, torch.tensor(config.dual_clip * advantage))
    return -objective


def reference_gradient(algorithm: ActorCriticAlgorithm, name: str, batch: Batch) -> Tensor:
    length, num_columns = batch.fields["reward"].shape
    parameters, values = algorithm.network(batch.fields["obs"].flatten(0, 1))
    values = values.view(length + 1, num_columns)
    policy = policy_of(algorithm, parameters.view(length + 1, num_columns, -1)[:-1])
    log_prob, entropy = policy.log_prob(batch.fields["action"]), policy.entropy()
    log_rho = log_prob - batch.fields["behavior_log_prob"]
    each = [column(batch, values, log_rho, b) for b in range(num_columns)]
    if name in ("impact", "impala"):
        both = [(impact_factors if name == "impact" else impala_factors)(arrays) for arrays in each]
    else:
        both = [gae_factors(arrays, algorithm.config.gae_lambda) for arrays in each]
    targets, advantages = (np.stack(arrays, axis=1) for arrays in zip(*both, strict=True))
    valid = batch.fields["valid"].numpy()
    if name in ("decoupled_ppo", "impact", "ppo"):
        advantages = (advantages - advantages[valid].mean()) / (advantages[valid].std() + 1e-8)
    config = algorithm.config
    loss = torch.zeros(())
    for t, b in np.argwhere(valid):
        loss = loss + policy_loss(name, log_prob[t, b], log_rho[t, b], float(advantages[t, b]))
        loss = loss + config.value_coefficient * 0.5 * (values[t, b] - float(targets[t, b])) ** 2
        loss = loss - config.entropy_coefficient * entropy[t, b]
    gradients = torch.autograd.grad(loss / valid.sum(), list(algorithm.network.parameters()))
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def check_gradient_against_reference(name: str, env: EnvSpec = DISCRETE) -> None:
    algorithm = build(CONFIGS[name], env)
    batch = random_batch(env, 7, 5, seed=6)
    assert not batch.fields["valid"].all()
    policy = algorithm.network.policy(batch.fields["obs"][:-1].flatten(0, 1))
    log_prob = policy_of(algorithm, policy).log_prob(batch.fields["action"].flatten(0, 1)).detach()
    noise = torch.randn(35, generator=torch.Generator().manual_seed(0)) * 0.4
    batch.fields["behavior_log_prob"].copy_((log_prob - noise).view(7, 5))
    expected = reference_gradient(algorithm, name, batch)
    assert algorithm.update(batch, LocalReducer(), 0.0).applied
    actual = algorithm.optimizer.exp_avg / (1 - BETA1)
    assert expected.abs().max() > 0.05
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("env", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("name", CONFIGS)
def test_gradient_against_reference(name: str, env: EnvSpec) -> None:
    check_gradient_against_reference(name, env)
