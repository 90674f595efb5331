"""SAC, TD3 and DDPG: what they learn, how they act, which parts are stepped when, what they refuse."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcrl.algorithms import Batch, LocalReducer
from hpcrl.algorithms.continuous import ContinuousAlgorithm
from hpcrl.algorithms.gradient import FlatAdam
from hpcrl.algorithms.sac import SAC
from hpcrl.algorithms.td3 import TD3
from hpcrl.config import ConfigError, ContinuousConfig, DDPGConfig, ModelConfig, SACConfig, TD3Config
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.functional.losses import least_value_target, temperature_loss
from hpcrl.models.flat import FlatParameters
from tests.unit.algorithms.replayed import APART, SETUPS, build_setup, replayed
from tests.unit.algorithms.support import CONTINUOUS, DISCRETE, make_batch

LOCAL = LocalReducer()
NAMES = ("ddpg", "sac", "td3")
CONFIGS: dict[str, type[ContinuousConfig]] = {"ddpg": DDPGConfig, "sac": SACConfig, "td3": TD3Config}
CONSTANT = EnvSpec(
    id="Constant-v0",
    observation=ArraySpec(shape=(1,), dtype="float32"),
    action=ActionSpec(kind="continuous", size=1, low=(-2.0,), high=(6.0,)),
)
CASES = {
    case["name"]: case
    for case in json.loads((Path(__file__).parents[2] / "golden" / "oracles" / "sac_td3.json").read_text())[
        "cases"
    ]
}


def make(
    name: str, env: EnvSpec = CONTINUOUS, model: ModelConfig = APART, seed: int = 0, **options: Any
) -> ContinuousAlgorithm:
    classes: dict[str, type[ContinuousAlgorithm]] = {"sac": SAC, "td3": TD3, "ddpg": TD3}
    return classes[name](CONFIGS[name].parse({"name": name} | options), env, model, seed)


def constant_batch(action: Any, reward: Any, discount: Any, update: int) -> Batch:
    """Transitions in an environment that always looks the same; all [N]."""
    fields = {
        name: np.asarray(values, np.float32)
        for name, values in {
            "action": np.reshape(action, (1, -1, 1)),
            "reward": np.reshape(reward, (1, -1)),
            "discount": np.reshape(discount, (1, -1)),
        }.items()
    }
    obs, valid = np.ones_like(fields["action"]), np.ones(fields["reward"].shape, bool)
    weight = np.ones_like(fields["reward"])
    return make_batch(fields | {"obs": obs, "next_obs": obs, "weight": weight, "valid": valid}, update)


def part_of(algorithm: ContinuousAlgorithm, index: int) -> torch.Tensor:
    part = algorithm.network.parts()[index]
    return algorithm.parameters.vector[part.start : part.stop]


@pytest.mark.parametrize("name", ["sac_random", "sac_with_terminal"])
def test_oracle_sac(name: str) -> None:
    inputs, expected = CASES[name]["inputs"], CASES[name]["expected"]
    given = {key: torch.tensor(values, dtype=torch.float64) for key, values in inputs.items()}
    log_temperature = given["log_alpha"].requires_grad_()
    temperature = log_temperature.detach().exp()
    next_values = torch.stack((given["q1_target_next"], given["q2_target_next"]))
    discount = inputs["gamma"] * (1 - given["terminated"])
    target = least_value_target(given["rewards"], discount, next_values, -temperature * given["logp_next"])
    np.testing.assert_allclose(target, expected["critic_target"], rtol=1e-6)
    loss = temperature_loss(log_temperature, given["logp_current"], inputs["target_entropy"])
    assert loss.shape == given["rewards"].shape
    assert loss.mean().item() == pytest.approx(expected["alpha_loss_log_form"])
    loss.mean().backward()
    assert log_temperature.grad is not None
    assert log_temperature.grad.item() == pytest.approx(expected["dalpha_loss_log_form_dlog_alpha"])


@pytest.mark.parametrize("name", ["sac_random", "sac_with_terminal"])
def test_oracle_sac_losses_of_an_update(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole loss, with networks that say what the oracle does."""
    inputs, expected = CASES[name]["inputs"], CASES[name]["expected"]
    given = {key: torch.tensor(values, dtype=torch.float32) for key, values in inputs.items()}
    algorithm = make("sac", initial_temperature=math.exp(inputs["log_alpha"]), target_entropy=-3.0)
    drawn = [(torch.zeros(4, 3), given["logp_next"]), (torch.zeros(4, 3), given["logp_current"])]
    ours = torch.stack((given["q1_current"], given["q2_current"])).requires_grad_()
    values = [torch.stack((given["q1_target_next"], given["q2_target_next"])), ours, ours]
    monkeypatch.setattr(algorithm, "sample", lambda obs, noise: drawn.pop(0))
    monkeypatch.setattr(algorithm.network.critics, "forward", lambda *_, **__: values.pop(0))
    batch = replayed(algorithm, CONTINUOUS, 4, 0)
    fields = dict(batch.fields) | {
        "reward": given["rewards"].unsqueeze(0),
        "discount": inputs["gamma"] * (1 - given["terminated"]).unsqueeze(0),
    }
    fields["weight"] = torch.ones(1, 4)
    metrics = algorithm.update(replace(batch, fields=fields), LOCAL, 0.0).metrics
    assert metrics["value_loss"] == pytest.approx(0.5 * expected["critic_loss_sum_of_mse"], rel=1e-5)
    assert metrics["policy_loss"] == pytest.approx(expected["actor_loss"], rel=1e-5)
    assert metrics["q_target"] == pytest.approx(np.mean(expected["critic_target"]), rel=1e-5)
    assert values == [] and drawn == []


def test_oracle_td3() -> None:
    case = CASES["td3_terminal_and_action_clip"]
    inputs, expected = case["inputs"], case["expected"]
    given = {key: torch.tensor(values, dtype=torch.float64) for key, values in inputs.items()}
    td3 = make("td3", target_noise=inputs["sigma"], target_noise_clip=inputs["noise_clip"])
    assert isinstance(td3, TD3)
    action = td3.smoothed(given["pi_target_next"], given["unit_noise"])
    np.testing.assert_allclose(action, expected["smoothed_action"], rtol=1e-6)
    next_values = torch.stack([action @ given[f"q{i}_weights"] for i in (1, 2)])
    discount = inputs["gamma"] * (1 - given["terminated"])
    target = least_value_target(given["rewards"], discount, next_values)
    np.testing.assert_allclose(target, expected["target"], rtol=1e-6)
    assert td3.smoothed(torch.tensor([[0.95]]), torch.tensor([[9.0]])).item() == 1.0, "cut at the bounds"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ends", "value"), [(0.0, 5.0), (0.5, 1 / (1 - 0.4))])
def test_time_limits_do_not_end_the_value(name: str, ends: float, value: float) -> None:
    """Reward 1 for ever is worth 1 / (1 - gamma); only what is terminated has no discount."""
    own = {"initial_temperature": 1e-6, "auto_temperature": False} if name == "sac" else {}
    linear = ModelConfig(hidden_sizes=(), shared_torso=False)
    algorithm = make(name, CONSTANT, linear, learning_rate=0.05, target_tau=0.5, **own)
    discount = np.where(np.arange(8) < 8 * ends, 0.0, 0.8)
    for update in range(200):
        action = np.random.default_rng(update).uniform(-1, 1, 8)
        assert algorithm.update(constant_batch(action, np.ones(8), discount, update), LOCAL, 0.0).applied
    with torch.no_grad():
        values = algorithm.network.critics(torch.ones(1, 1), torch.zeros(1, 1))
    np.testing.assert_allclose(values, value, rtol=0.1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("slope", [-1, 1])
def test_the_better_actions_are_found(name: str, slope: int) -> None:
    """The reward rises, or falls, with the action."""
    own = {"initial_temperature": 0.01, "auto_temperature": False} if name == "sac" else {}
    linear = ModelConfig(hidden_sizes=(), shared_torso=False)
    algorithm = make(name, CONSTANT, linear, learning_rate=0.05, **own)
    rng = np.random.default_rng(0)
    for update in range(120):
        action = rng.uniform(-1, 1, 16)
        algorithm.update(constant_batch(action, slope * action, np.zeros(16), update), LOCAL, 0.0)
    acted = algorithm.act(np.ones((2, 1), np.float32), rng, greedy=True)["action"]
    assert (acted * slope > 0.8).all()
    np.testing.assert_allclose(algorithm.to_env(acted), 4 * acted + 2)


@pytest.mark.parametrize("name", NAMES)
def test_acting(name: str) -> None:
    algorithm = make(name, random_env_steps=50)
    obs = np.random.default_rng(0).normal(size=(4000, 4)).astype(np.float32) * 3
    rng = np.random.default_rng(1)
    greedy = algorithm.act(obs, rng, greedy=True, exploration=np.ones(4000, np.float32))["action"]
    np.testing.assert_array_equal(greedy, algorithm.act(obs, np.random.default_rng(9), greedy=True)["action"])
    drawn = algorithm.act(obs, rng, exploration=algorithm.exploration(np.arange(4000), 4000, 49))["action"]
    assert abs(drawn.mean()) < 0.03 and abs(drawn.std() - 1 / math.sqrt(3)) < 0.01, "not uniform"
    after = algorithm.exploration(np.arange(4000), 4000, 50)
    chosen = algorithm.act(obs, rng, exploration=after)["action"]
    some = algorithm.act(
        obs, np.random.default_rng(1), exploration=(np.arange(4000) < 2000).astype(np.float32)
    )
    assert abs(np.abs(some["action"][:2000]).mean() - 0.5) < 0.03
    for action in (greedy, drawn, chosen, some["action"]):
        assert action.dtype == np.float32 and action.shape == (4000, 3)
        assert np.abs(action).max() <= 1
    if name == "sac":
        assert abs(np.arctanh(chosen.clip(-0.999, 0.999)).std() - 1) < 0.05
    else:
        assert abs((chosen - greedy).std() - 0.1) < 0.005
    assert algorithm.act(obs[:0], rng)["action"].shape == (0, 3)


def test_exploration_noise_is_cut_at_the_bounds_before_it_is_stored() -> None:
    algorithm = make("td3", exploration_noise=5.0)
    action = algorithm.act(np.zeros((500, 4), np.float32), np.random.default_rng(0))["action"]
    assert (np.abs(action) == 1).mean() > 0.5
    assert np.abs(action).max() == 1


def test_the_policy_and_the_targets_of_td3_wait() -> None:
    algorithm = make("td3", policy_delay=3, target_update_updates=3)
    for update in range(7):
        before = [part_of(algorithm, index).clone() for index in (0, 1)]
        target = algorithm.target.vector.clone()
        metrics = algorithm.update(replayed(algorithm, CONTINUOUS, 9, update), LOCAL, 0.0).metrics
        turn = update in (2, 5)
        assert torch.equal(part_of(algorithm, 0), before[0]) != turn
        assert not torch.equal(part_of(algorithm, 1), before[1])
        assert torch.equal(algorithm.target.vector, target) != turn
        assert math.isnan(metrics["policy_loss"]) != turn
    assert algorithm.state()["adam_steps"].tolist() == [2, 7]


def test_adam_corrects_each_part_by_its_own_steps() -> None:
    """Against one torch.optim.Adam for each of two layers, of which the second is stepped in every third step."""
    module, reference = (torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)) for _ in range(2))
    reference.load_state_dict(module.state_dict())
    parameters = FlatParameters(module)
    adam = FlatAdam(parameters, 1e-8, [range(24), range(24, 39)])
    expected = [
        torch.optim.Adam(layer.parameters(), lr=rate)
        for layer, rate in zip(reference, (1e-2, 3e-2), strict=True)
    ]
    generator = torch.Generator().manual_seed(0)
    for step in range(9):
        obs = torch.randn(4, 5, generator=generator)
        parameters.zero_gradient()
        module(obs).square().sum().backward()
        adam.step((1e-2, 3e-2 if step % 3 == 2 else None), parameters.gradient.numpy(), 1.0)
        reference.zero_grad()
        reference(obs).square().sum().backward()
        expected[0].step()
        if step % 3 == 2:
            expected[1].step()
    flat = torch.cat([one.detach().reshape(-1) for one in reference.parameters()])
    torch.testing.assert_close(parameters.vector, flat, atol=1e-6, rtol=1e-5)
    assert adam.steps == 9


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_of_the_critics_alone(name: str) -> None:
    """Without any weight the critics have no gradient, not even from the policy's loss; the policy has its own."""
    gradients = []
    for weight in (0.0, 1.0):
        algorithm = make(name, policy_delay=1) if name == "td3" else make(name)
        batch = replayed(algorithm, CONTINUOUS, 6, 0)
        batch.fields["weight"].fill_(weight)
        result = algorithm.update(batch, LOCAL, 0.0)
        policy, critics = (slice(part.start, part.stop) for part in algorithm.network.parts()[:2])
        gradients.append(
            (algorithm.optimizer.exp_avg[policy].clone(), algorithm.optimizer.exp_avg[critics].clone())
        )
        assert result.priorities is not None and (result.priorities > 0).all()
    assert gradients[0][1].abs().max() == 0 < gradients[1][1].abs().max()
    assert gradients[0][0].abs().max() > 0
    torch.testing.assert_close(gradients[0][0], gradients[1][0])


@pytest.mark.parametrize("name", NAMES)
def test_no_policy_is_trained_on_what_is_not_valid(name: str) -> None:
    """Nor a temperature: other observations there change no gradient."""
    gradients = []
    for obs in (0.0, 3.0):
        algorithm = make(name, **({"policy_delay": 1} if name == "td3" else {}))
        batch = replayed(algorithm, CONTINUOUS, 5, 0)
        batch.fields["valid"][0, 2] = False
        batch.fields["obs"][0, 2] = obs
        batch.fields["next_obs"][0, 2] = obs
        assert algorithm.update(batch, LOCAL, 0.0).applied
        gradients.append(algorithm.optimizer.exp_avg)
    assert torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize("name", NAMES)
def test_priorities_are_the_mean_of_the_critics_errors(name: str) -> None:
    algorithm = make(name, num_critics=3)
    batch = replayed(algorithm, CONTINUOUS, 5, 0)
    batch.fields["discount"].fill_(0.0)
    with torch.no_grad():
        values = algorithm.network.critics(batch.fields["obs"][0], batch.fields["action"][0])
    assert values.shape == (3, 5)
    expected = (values - batch.fields["reward"][0]).abs().mean(0)
    np.testing.assert_allclose(algorithm.update(batch, LOCAL, 0.0).priorities, expected, rtol=1e-5)


def test_the_least_of_the_target_critics_counts() -> None:
    algorithm = make("td3", target_noise=0.0)
    batch = replayed(algorithm, CONTINUOUS, 50, 0)
    obs, next_obs, action = (batch.fields[name][0] for name in ("obs", "next_obs", "action"))
    with torch.no_grad():
        ahead = algorithm.network.critics(next_obs, algorithm.network.policy(next_obs).tanh())
        values = algorithm.network.critics(obs, action)
    assert 5 < (ahead[0] < ahead[1]).sum() < 45
    target = batch.fields["reward"][0] + batch.fields["discount"][0] * ahead.amin(0)
    result = algorithm.update(batch, LOCAL, 0.0)
    np.testing.assert_allclose(result.priorities, (values - target).abs().mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("target_entropy", "rises"), [(-50.0, False), (50.0, True), (None, False)])
def test_the_temperature_goes_where_the_entropy_is_wanted(target_entropy: float | None, rises: bool) -> None:
    algorithm = make("sac", target_entropy=target_entropy, temperature_learning_rate=0.1)
    results = [algorithm.update(replayed(algorithm, CONTINUOUS, 9, seed), LOCAL, 0.0) for seed in range(3)]
    temperatures = [1.0, *(result.metrics["temperature"] for result in results)]
    assert temperatures == sorted(temperatures, reverse=not rises)
    assert abs(math.log(temperatures[-1])) > 0.2
    kept = make("sac", auto_temperature=False, initial_temperature=0.3)
    metrics = kept.update(replayed(kept, CONTINUOUS, 9, 0), LOCAL, 0.0).metrics
    assert metrics["temperature"] == pytest.approx(0.3)
    assert kept.state()["adam_steps"].tolist() == [1, 1, 0]


@pytest.mark.parametrize("name", NAMES)
def test_learning_rates_of_their_own(name: str) -> None:
    """A first step of Adam is as long as the learning rate."""
    options = {"policy_delay": 1} if name == "td3" else {}
    options |= {"temperature_learning_rate": 4e-3} if name == "sac" else {}
    algorithm = make(name, learning_rate=1e-3, policy_learning_rate=2e-3, warmup_updates=2, **options)
    before = algorithm.parameters.vector.clone()
    algorithm.update(replayed(algorithm, CONTINUOUS, 9, 0), LOCAL, 0.0)
    moved = (algorithm.parameters.vector - before).abs()
    for part, rate in zip(algorithm.network.parts(), (2e-3, 1e-3, 4e-3), strict=False):
        assert moved[part.start : part.stop].max().item() == pytest.approx(rate / 2, rel=0.01)
    scaling = {"learning_rate_scaling": "linear", "reference_batch": 64}
    config = algorithm.config.model_copy(update=scaling).scale_learning_rate(256)
    assert (config.learning_rate, config.policy_learning_rate) == (4e-3, 8e-3)


def test_noise_differs_from_update_to_update_and_from_seed_to_seed() -> None:
    algorithm, other = make("sac"), make("sac", seed=1)
    batches = [replayed(algorithm, CONTINUOUS, 5, seed) for seed in (0, 1)]
    drawn = [algorithm.noise(batches[0]), algorithm.noise(batches[1]), other.noise(batches[0])]
    assert drawn[0].shape == (1, 5, 2, 3)
    assert len({values.numpy().tobytes() for values in drawn}) == 3
    assert torch.equal(drawn[0], algorithm.noise(batches[0]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_images(name: str, precision: str) -> None:
    env = replace(CONTINUOUS, observation=ArraySpec(shape=(1, 36, 36), dtype="uint8"))
    model = ModelConfig(
        torso="nature_cnn", hidden_sizes=(8,), activation="relu", shared_torso=False, precision=precision
    )
    algorithm = make(name, env, model, **({"policy_delay": 1} if name == "td3" else {}))
    batch = replayed(algorithm, CONTINUOUS, 3, 0)
    images = np.random.default_rng(0).integers(0, 256, (2, 1, 3, 1, 36, 36), dtype=np.uint8)
    fields = dict(batch.fields) | {
        "obs": torch.from_numpy(images[0]),
        "next_obs": torch.from_numpy(images[1]),
    }
    before = algorithm.parameters.vector.clone()
    assert algorithm.update(replace(batch, fields=fields), LOCAL, 0.0).applied
    for part in algorithm.network.parts():
        changed = algorithm.parameters.vector[part.start : part.stop] != before[part.start : part.stop]
        assert changed.float().mean() > 0.3  # hidden units may see nothing


@pytest.mark.parametrize("name", NAMES)
def test_actions_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"algorithm\.name={name} does not fit the discrete actions of Discr.*dqn"
    ):
        make(name, DISCRETE)
    action = ActionSpec(kind="continuous", size=2, low=(-1, -math.inf), high=(1, math.inf))
    with pytest.raises(
        ConfigError, match=rf"algorithm\.name={name} .*dimension 1 of 2.*-inf, inf.*algorithm\.name=ppo"
    ):
        make(name, replace(CONTINUOUS, action=action))


def test_ddpg_is_td3_with_one_critic_and_nothing_else() -> None:
    """Equal seeds, equal weights after some updates."""
    keys = {"num_critics": 1, "policy_delay": 1, "target_update_updates": 1, "target_noise": 0.0}
    both = [make("ddpg"), make("td3", **keys)]
    for seed in range(3):
        for algorithm in both:
            algorithm.update(replayed(algorithm, CONTINUOUS, 5, seed), LOCAL, 0.0)
    assert both[0].parameters.sha256() == both[1].parameters.sha256()
    assert both[0].parameters.sha256() != build_setup(SETUPS["td3"]).parameters.sha256()
