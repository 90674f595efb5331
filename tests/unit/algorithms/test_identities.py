"""Where two algorithms are the same one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcrl.algorithms import Batch, LocalReducer
from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm
from hpcrl.config import A2CConfig, DecoupledPPOConfig, ImpactConfig, PPOConfig
from tests.unit.algorithms.support import DISCRETE, build, random_batch

LOCAL = LocalReducer()


def on_policy(algorithm: ActorCriticAlgorithm) -> Batch:
    """A batch that this algorithm, as it is, could have collected."""
    batch = random_batch(DISCRETE, 6, 5, seed=4)
    obs, action = batch.fields["obs"][:-1].flatten(0, 1), batch.fields["action"].flatten(0, 1)
    with torch.no_grad():
        batch.fields["behavior_log_prob"].copy_(algorithm.evaluate(obs, action)[0].view(6, 5))
    return batch


def stale(batch: Batch, by: float) -> Batch:
    batch.fields["behavior_log_prob"].add_(by)
    return batch


def test_decoupled_ppo_on_fresh_data_is_ppo() -> None:
    options = {"epochs": 3, "num_minibatches": 2, "dual_clip": 3.0, "learning_rate": 0.03}
    ppo, decoupled = build(PPOConfig(**options)), build(DecoupledPPOConfig(**options))
    batch = on_policy(ppo)
    results = [algorithm.update(batch, LOCAL, 0.0) for algorithm in (ppo, decoupled)]
    assert ppo.parameters.sha256() == decoupled.parameters.sha256()
    # sums of six metrics side by side may be rounded otherwise than those of seven
    assert results[0].metrics | {"rho_clip_fraction": 0.0} == pytest.approx(results[1].metrics, rel=1e-6)
    assert results[0].metrics["clip_fraction"] > 0


def test_decoupled_ppo_does_not_clip_for_age() -> None:
    """The policy that acted gave every action much less probability: PPO clips what is good, all of it."""
    options = {"epochs": 1, "num_minibatches": 1, "entropy_coefficient": 0.0, "value_coefficient": 0.0}
    moved = {}
    for config in (PPOConfig(**options), DecoupledPPOConfig(**options, behavior_weight_cap=2.0)):
        algorithm = build(config)
        batch = stale(on_policy(algorithm), -5.0)
        batch.fields["reward"].fill_(1.0)
        metrics = algorithm.update(batch, LOCAL, 0.0).metrics
        moved[config.name] = metrics["clip_fraction"]
    assert moved == {"ppo": 1.0, "decoupled_ppo": 0.0}


def test_the_cap_bounds_what_age_multiplies() -> None:
    """Far too likely now: the gradient is the one of fresh data, times the cap."""
    options = {"epochs": 1, "num_minibatches": 1, "entropy_coefficient": 0.0, "value_coefficient": 0.0}
    gradients = []
    for by in (0.0, -50.0):
        algorithm = build(DecoupledPPOConfig(**options, behavior_weight_cap=2.0, max_grad_norm=1e6))
        algorithm.update(stale(on_policy(algorithm), by), LOCAL, 0.0)
        gradients.append(algorithm.optimizer.exp_avg.numpy())
    np.testing.assert_allclose(gradients[1], 2.0 * gradients[0], rtol=1e-4, atol=1e-7)


def test_impact_with_a_target_that_acted_is_ppo() -> None:
    options = {"epochs": 3, "num_minibatches": 2, "dual_clip": 3.0, "learning_rate": 0.03}
    ppo, impact = build(PPOConfig(**options)), build(ImpactConfig(**options))
    batch = on_policy(ppo)
    results = [algorithm.update(batch, LOCAL, 0.0) for algorithm in (ppo, impact)]
    assert results[0].metrics["clip_fraction"] > 0
    assert results[1].metrics == pytest.approx(results[0].metrics, rel=1e-4)
    np.testing.assert_allclose(impact.parameters.numpy, ppo.parameters.numpy, atol=1e-5)


def test_impact_follows_its_target_every_so_many_updates() -> None:
    impact = build(ImpactConfig(target_update_updates=2, learning_rate=0.03))
    targets, learned = [], []
    for update in range(5):
        learned.append(impact.parameters.numpy.copy())
        impact.update(replace(on_policy(impact), update=update), LOCAL, 0.0)
        targets.append(impact.target.vector.numpy().copy())
    assert not np.array_equal(learned[0], learned[1])
    for update, of in enumerate((0, 0, 2, 2, 4)):
        np.testing.assert_array_equal(targets[update], learned[of])


def test_impact_does_not_move_away_from_its_target() -> None:
    """That data are fresh does not count: what is good is clipped, once the target is far behind."""
    config = ImpactConfig(epochs=1, num_minibatches=1, entropy_coefficient=0.0, value_coefficient=0.0)
    clipped = {}
    for by in (0.0, 1.0):
        impact = build(config)
        impact.update(on_policy(impact), LOCAL, 0.0)
        impact.network.policy_head.bias.data += torch.tensor([by, 0.0, -by])
        metrics = impact.update(replace(on_policy(impact), update=1), LOCAL, 0.0).metrics
        assert abs(metrics["log_rho_mean"]) < 1e-6
        clipped[by] = metrics["clip_fraction"]
    assert clipped[0.0] == 0 and clipped[1.0] > 0.5


def test_the_first_step_of_ppo_is_that_of_a2c() -> None:
    ppo = build(
        PPOConfig(epochs=1, num_minibatches=1, gae_lambda=1.0, normalize_advantages=False, unroll_length=5)
    )
    a2c = build(A2CConfig(learning_rate=ppo.config.learning_rate))
    batch = on_policy(ppo)
    for algorithm in (ppo, a2c):
        algorithm.update(batch, LOCAL, 0.0)
    np.testing.assert_allclose(a2c.optimizer.exp_avg, ppo.optimizer.exp_avg, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(a2c.parameters.numpy, ppo.parameters.numpy, atol=1e-5)
