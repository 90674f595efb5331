"""One learner: acting, what an update does, state, configuration."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from hpcrl.algorithms import Batch, LocalReducer
from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm
from hpcrl.config import ImpalaConfig, ModelConfig, PPOConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec, trajectory_spec
from tests.unit.algorithms.support import (
    CONFIGS,
    CONTINUOUS,
    DISCRETE,
    acted_batch,
    build,
    make_batch,
    random_batch,
    without_noise,
)

LOCAL = LocalReducer()
CONSTANT = EnvSpec(
    id="Constant-v0",
    observation=ArraySpec(shape=(1,), dtype="float32"),
    action=ActionSpec(kind="discrete", size=2),
)
LINEAR = ModelConfig(hidden_sizes=())
SURROGATE = ("decoupled_ppo", "impact", "ppo")


def tabular(name: str, **options: Any) -> ActorCriticAlgorithm:
    steps = {"epochs": 2, "num_minibatches": 2} if name in SURROGATE else {}
    config = type(CONFIGS[name]).parse({"name": name, "max_grad_norm": 10.0} | steps | options)
    return build(config, CONSTANT, LINEAR)


def collect(algorithm: ActorCriticAlgorithm, length: int, num_columns: int, rng: Any) -> dict[str, Any]:
    """Fields of steps in an environment that always looks the same; nothing ends, reward is the action."""
    obs = np.ones((length + 1, num_columns, 1), np.float32)
    acted = [algorithm.act(row, rng) for row in obs[:-1]]
    action = np.stack([step["action"] for step in acted])
    never = np.zeros(action.shape, bool)
    return {
        "obs": obs,
        "action": action,
        "behavior_log_prob": np.stack([step["behavior_log_prob"] for step in acted]),
        "reward": action.astype(np.float32),
        "terminated": never,
        "truncated": never.copy(),
        "valid": ~never,
    }


def check_time_limit_chain(name: str) -> None:
    """Reward 1 for ever, cut every five steps, then one reset step: the value is 1 / (1 - gamma) = 5."""
    algorithm = tabular(name, gamma=0.8, learning_rate=0.05, entropy_coefficient=0.0)
    rng = np.random.default_rng(0)
    for update in range(300):
        fields = collect(algorithm, 12, 6, rng)
        phase = (np.arange(12)[:, None] + np.arange(6)[None, :]) % 6
        fields["truncated"] = phase == 4
        fields["valid"] = phase != 5
        fields["reward"] = fields["valid"].astype(np.float32)
        assert algorithm.update(make_batch(fields, update), LOCAL, 0.0).applied
    value = algorithm.network.value(torch.ones(1, 1)).item()
    assert abs(value - 5.0) < 0.25, value


def check_steps_that_are_not_valid_do_not_matter(name: str) -> None:
    batch = random_batch(DISCRETE, 6, 5, seed=3)
    invalid = ~batch.fields["valid"]
    assert invalid.any()
    changed = Batch(
        fields={key: values.clone() for key, values in batch.fields.items()},
        column_offset=0,
        total_columns=5,
        update=0,
    )
    changed.fields["reward"][invalid] = math.nan
    changed.fields["behavior_log_prob"][invalid] = math.nan
    changed.fields["action"][invalid] = (changed.fields["action"][invalid] + 1) % 3
    first, second = build(CONFIGS[name]), build(CONFIGS[name])
    results = [first.update(batch, LOCAL, 0.0), second.update(changed, LOCAL, 0.0)]
    assert [result.applied for result in results] == [True, True]
    assert first.parameters.sha256() == second.parameters.sha256()
    np.testing.assert_equal(results[0].metrics, results[1].metrics)


def check_ratio_is_against_the_policy_that_acted(name: str) -> None:
    """Collected with one two-action policy, trained with another: the ratio of their probabilities."""
    options = {"epochs": 1, "num_minibatches": 1} if name in SURROGATE else {}
    own = {"decoupled_ppo": {"behavior_weight_cap": 1.1}, "impact": {"target_ratio_cap": 9.0}}
    algorithm = tabular(name, **options, **own.get(name, {}))
    fields = collect(algorithm, 8, 4, np.random.default_rng(2))
    old = np.log(1 / (1 + np.exp(-bias_difference(algorithm) * np.array([-1, 1]))))
    algorithm.network.policy_head.bias.data.add_(torch.tensor([0.7, -0.4]))
    new = np.log(1 / (1 + np.exp(-bias_difference(algorithm) * np.array([-1, 1]))))
    log_rho = (new - old)[fields["action"]]
    metrics = algorithm.update(make_batch(fields), LOCAL, 0.0).metrics
    np.testing.assert_allclose(metrics["log_rho_mean"], log_rho.mean(), rtol=1e-4)
    largest = np.abs(log_rho).max()
    assert largest * 0.999 < metrics["log_rho_max"] < largest * 1.15
    assert (
        metrics["log_rho_p50"] <= metrics["log_rho_p90"] <= metrics["log_rho_p99"] == metrics["log_rho_max"]
    )
    if name in ("decoupled_ppo", "impact"):  # its interval lies around the policy that is trained
        assert metrics["approx_kl"] == metrics["clip_fraction"] == 0
        if name == "decoupled_ppo":
            assert metrics["rho_clip_fraction"] == np.mean(np.exp(log_rho) > 1.1) > 0
        return
    np.testing.assert_allclose(metrics["approx_kl"], (np.expm1(log_rho) - log_rho).mean(), rtol=1e-4)
    if name == "ppo":
        assert metrics["clip_fraction"] == np.mean(np.abs(np.expm1(log_rho)) > 0.2) > 0
    elif name == "impala":
        assert metrics["rho_clip_fraction"] == np.mean(log_rho > 0) > 0


def bias_difference(algorithm: ActorCriticAlgorithm) -> float:
    """logit of action 1 minus logit of action 0 at the only observation."""
    with torch.no_grad():
        logits = algorithm.network.policy(torch.ones(1, 1))[0].tolist()
    return logits[1] - logits[0]


def check_reward_clip(name: str) -> None:
    batches = []
    for scale in (1.0, 1000.0):
        batch = random_batch(DISCRETE, 5, 4, seed=1)
        batch.fields["reward"].copy_(torch.sign(batch.fields["reward"]) * scale)
        batches.append(batch)
    config = CONFIGS[name].with_overrides(["reward_clip=1.0"])
    digests = []
    for batch, used in ((batches[0], config), (batches[1], config), (batches[1], CONFIGS[name])):
        algorithm = build(used)
        algorithm.update(batch, LOCAL, 0.0)
        digests.append(algorithm.parameters.sha256())
    assert digests[0] == digests[1]
    assert digests[1] != digests[2]


@pytest.mark.parametrize("name", CONFIGS)
def test_time_limit_chain(name: str) -> None:
    check_time_limit_chain(name)


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_that_are_not_valid_do_not_matter(name: str) -> None:
    check_steps_that_are_not_valid_do_not_matter(name)


@pytest.mark.parametrize("name", CONFIGS)
def test_ratio_is_against_the_policy_that_acted(name: str) -> None:
    check_ratio_is_against_the_policy_that_acted(name)


@pytest.mark.parametrize("name", CONFIGS)
def test_reward_clip(name: str) -> None:
    check_reward_clip(name)


@pytest.mark.parametrize("name", CONFIGS)
def test_reward_scale_equals_scaled_rewards(name: str) -> None:
    plain, scaled = (random_batch(DISCRETE, 5, 4, seed=1) for _ in range(2))
    scaled.fields["reward"].mul_(0.25)
    digests = []
    for batch, config in (
        (scaled, CONFIGS[name]),
        (plain, CONFIGS[name].with_overrides(["reward_scale=0.25"])),
    ):
        algorithm = build(config)
        algorithm.update(batch, LOCAL, 0.0)
        digests.append(algorithm.parameters.sha256())
    assert digests[0] == digests[1]
    unscaled = build(CONFIGS[name])
    unscaled.update(plain, LOCAL, 0.0)
    assert unscaled.parameters.sha256() != digests[0]


@pytest.mark.parametrize("env", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("name", CONFIGS)
def test_fresh_data_have_ratio_one(name: str, env: EnvSpec) -> None:
    algorithm = build(CONFIGS[name].with_overrides(["learning_rate=1e-9"]), env)
    batch = acted_batch(algorithm, env, 4, 6)
    metrics = algorithm.update(batch, LOCAL, 0.0).metrics
    assert abs(metrics["log_rho_mean"]) < 1e-6
    assert abs(metrics["approx_kl"]) < 1e-9


@pytest.mark.parametrize("name", CONFIGS)
def test_a_two_armed_bandit_is_learned(name: str) -> None:
    algorithm = tabular(name, gamma=0.0, learning_rate=0.05)
    rng = np.random.default_rng(1)
    start = bias_difference(algorithm)
    for update in range(40):
        algorithm.update(make_batch(collect(algorithm, 8, 16, rng), update), LOCAL, 0.0)
    assert abs(start) < 0.1
    assert 1 / (1 + math.exp(-bias_difference(algorithm))) > 0.9


@pytest.mark.parametrize("env", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("num_envs", [0, 1, 5])
@pytest.mark.parametrize("greedy", [False, True])
def test_act_returns_the_fields_of_the_trajectory(env: EnvSpec, num_envs: int, greedy: bool) -> None:
    algorithm = build(CONFIGS["impala"], env)
    spec = trajectory_spec(env, 3, num_envs, algorithm.extra_fields)
    by_name = {field.name: field for field in spec.fields}
    obs = np.random.default_rng(0).normal(size=(num_envs, 4)).astype(np.float32)
    acted = algorithm.act(obs, np.random.default_rng(1), greedy=greedy)
    assert set(acted) == {"action", "behavior_log_prob"}
    for name, values in acted.items():
        assert values.shape == (num_envs, *by_name[name].shape)
        assert values.dtype == by_name[name].dtype
    again = algorithm.act(obs, np.random.default_rng(1), greedy=greedy)
    np.testing.assert_array_equal(acted["action"], again["action"])
    with torch.no_grad():
        log_prob, _, _ = algorithm.evaluate(*(torch.from_numpy(x) for x in (obs, acted["action"])))
    np.testing.assert_allclose(acted["behavior_log_prob"], log_prob.numpy(), atol=1e-6)


def test_acting_follows_the_vector_of_parameters() -> None:
    algorithm = tabular("impala")
    obs = np.ones((3, 1), np.float32)
    for best in (0, 1):
        algorithm.parameters.numpy[:] = 0
        algorithm.network.policy_head.bias.data[best] = 1.0
        acted = algorithm.act(obs, np.random.default_rng(0), greedy=True)
        assert acted["action"].tolist() == [best] * 3


def test_the_learning_rate_falls_with_progress() -> None:
    algorithm = build(ImpalaConfig(learning_rate=0.4, anneal_learning_rate=True))
    batch = random_batch(DISCRETE, 3, 2, seed=0)
    rates = [algorithm.update(batch, LOCAL, p).metrics["learning_rate"] for p in (0.0, 0.25, 1.0, 1.5)]
    assert rates == pytest.approx([0.4, 0.3, 0.0, 0.0])
    before = algorithm.parameters.sha256()
    algorithm.update(batch, LOCAL, 1.0)
    assert algorithm.parameters.sha256() == before


@pytest.mark.parametrize("name", CONFIGS)
def test_warm_up_counts_updates_and_goes_with_annealing(name: str) -> None:
    algorithm = build(CONFIGS[name].with_overrides(["learning_rate=0.4", "warmup_updates=4"]))
    annealed = build(algorithm.config.with_overrides(["anneal_learning_rate=true"]))
    for update, share in ((0, 0.25), (2, 0.75), (3, 1.0), (4, 1.0), (1000, 1.0)):
        batch = random_batch(DISCRETE, 3, 2, seed=0, update=update)
        assert algorithm.update(batch, LOCAL, 0.5).metrics["learning_rate"] == pytest.approx(0.4 * share)
        assert annealed.update(batch, LOCAL, 0.5).metrics["learning_rate"] == pytest.approx(0.2 * share)


@pytest.mark.parametrize("name", CONFIGS)
def test_large_observations_go_through_in_parts(name: str) -> None:
    whole, parts = (build(CONFIGS[name]) for _ in range(2))
    parts.chunk_rows = 13  # two columns of 6 observations at once
    batch = random_batch(DISCRETE, 5, 7, seed=0)
    expected = without_noise(whole.update(batch, LOCAL, 0.0))
    actual = without_noise(parts.update(batch, LOCAL, 0.0))
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(parts.parameters.numpy, whole.parameters.numpy, atol=1e-5)


def test_images_are_trained_on() -> None:
    env = EnvSpec(
        id="Image-v0",
        observation=ArraySpec(shape=(1, 36, 36), dtype="uint8"),
        action=ActionSpec(kind="discrete", size=2),
    )
    rng = np.random.default_rng(0)
    never = np.zeros((2, 2), bool)
    fields = {
        "obs": rng.integers(0, 256, (3, 2, 1, 36, 36), dtype=np.uint8),
        "action": rng.integers(0, 2, (2, 2)),
        "behavior_log_prob": np.full((2, 2), -0.7, np.float32),
        "reward": np.ones((2, 2), np.float32),
        "terminated": never,
        "truncated": never,
        "valid": ~never,
    }
    for name in CONFIGS:
        model = ModelConfig(torso="nature_cnn", hidden_sizes=(8,), activation="relu")
        algorithm = build(CONFIGS[name], env, model)
        before = algorithm.parameters.numpy.copy()
        assert algorithm.update(make_batch(fields), LOCAL, 0.0).applied
        assert (algorithm.parameters.numpy != before).mean() > 0.5


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_smallest_batches(name: str, shape: tuple[int, int]) -> None:
    overrides = ["num_minibatches=1"] if name in SURROGATE else []
    algorithm = build(CONFIGS[name].with_overrides(overrides))
    result = algorithm.update(random_batch(DISCRETE, *shape, seed=0), LOCAL, 0.0)
    assert result.applied
    assert np.isfinite(algorithm.parameters.numpy).all()


def test_too_many_minibatches_are_refused() -> None:
    algorithm = build(PPOConfig(num_minibatches=7))
    with pytest.raises(ValueError, match=r"algorithm\.num_minibatches=7.*at most 6"):
        algorithm.update(random_batch(DISCRETE, 3, 2, seed=0), LOCAL, 0.0)


def test_minibatches_cover_every_step_once_and_change_with_the_epoch() -> None:
    algorithm = build(PPOConfig(num_minibatches=4, epochs=3))
    batch = random_batch(DISCRETE, 5, 3, seed=0)
    parts = [part.tolist() for part in algorithm._minibatches(batch)]  # type: ignore[attr-defined]
    assert len(parts) == 12
    assert {len(part) for part in parts} <= {3, 4}
    epochs = [list(itertools.chain(*parts[i : i + 4])) for i in (0, 4, 8)]
    assert all(sorted(epoch) == list(range(15)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
