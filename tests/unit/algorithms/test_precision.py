"""Lower precision in the torso: what stays float32, how well acting and learning agree, the loss scale of float16."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcrl.algorithms import LocalReducer
from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm
from hpcrl.algorithms.gradient import ReducedGradient
from hpcrl.algorithms.loss_scale import (
    GROWTH_STEPS,
    INITIAL_LOSS_SCALE,
    LARGEST_LOSS_SCALE,
    SMALLEST_LOSS_SCALE,
    LossScale,
)
from hpcrl.config import ModelConfig, SurrogateConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.models.networks import ActorCritic
from tests.unit.algorithms.support import (
    CONFIGS,
    CONTINUOUS,
    DISCRETE,
    SMALL,
    acted_batch,
    build,
    random_batch,
    split,
    train,
)

LOCAL = LocalReducer()
LOW = ("bfloat16", "float16")
IMAGES = EnvSpec(
    id="Image-v0",
    observation=ArraySpec(shape=(2, 36, 40), dtype="uint8"),
    action=ActionSpec(kind="discrete", size=3),
)


def low(precision: str) -> ModelConfig:
    return ModelConfig(hidden_sizes=(16,), precision=precision)


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("shared", [True, False])
def test_only_the_torso_is_rounded(precision: str, shared: bool) -> None:
    model = low(precision).model_copy(update={"shared_torso": shared})
    rounded, exact = (ActorCritic(DISCRETE, one, 0) for one in (model, low("float32")))
    exact.load_state_dict(rounded.state_dict(), strict=shared)
    obs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    policy, value = rounded(obs)
    (policy.sum() + value.sum()).backward()
    assert {policy.dtype, value.dtype} == {torch.float32}
    assert {parameter.grad.dtype for parameter in rounded.parameters()} == {torch.float32}
    features, reference = rounded.torso(obs), exact.torso(obs)
    assert torch.equal(features, features.to(getattr(torch, precision)).float())
    assert 0 < (features - reference).abs().max() < 0.05
    assert torch.equal(policy, rounded.policy_head(features)), "the heads are not rounded"
    assert torch.equal(policy, policy.to(getattr(torch, precision)).float()) is False


@pytest.mark.parametrize("env", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("name", CONFIGS)
def test_who_acts_and_who_learns_in_bfloat16_agree(name: str, env: EnvSpec) -> None:
    """Acting in float32 would be off by the rounding of bfloat16, some thousandths."""
    algorithm = build(CONFIGS[name].with_overrides(["learning_rate=1e-12"]), env, low("bfloat16"))
    algorithm.network.policy_head.weight.data.mul_(100)  # a policy that depends on what it sees
    batch = acted_batch(algorithm, env, 4, 6)
    metrics = algorithm.update(batch, LOCAL, 0.0).metrics
    assert abs(metrics["log_rho_mean"]) < 1e-6
    assert metrics["log_rho_max"] < 3e-4


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("precision", LOW)
def test_learners_stay_bit_equal_and_near_to_float32(name: str, precision: str) -> None:
    batches = [random_batch(DISCRETE, 5, 7, seed=seed, update=seed) for seed in range(2)]
    exact = build(CONFIGS[name], model=low("float32"))
    train([exact], [[batch] for batch in batches])
    learners = [build(CONFIGS[name], model=low(precision)) for _ in range(3)]
    start = learners[0].parameters.numpy.copy()
    results = train(learners, [split(batch, (4, 0, 3)) for batch in batches])
    assert len({learner.parameters.sha256() for learner in learners}) == 1
    assert all(result.applied for one in results for result in one)
    moved, expected = learners[0].parameters.numpy - start, exact.parameters.numpy - start
    assert 0 < np.linalg.norm(moved - expected) < 0.2 * np.linalg.norm(expected)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_channels_last_is_the_layout_of_what_the_convolutions_see(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    shape = {"torso": "nature_cnn", "hidden_sizes": (8,), "activation": "relu", "precision": precision}
    plain, last = (ActorCritic(IMAGES, ModelConfig(**shape, channels_last=one), 0) for one in (False, True))
    obs = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 2, 36, 40), dtype=np.uint8))
    seen: list[Tensor] = []
    for network in (plain, last):
        look = functools.partial(_note, seen, network.torso[1].forward)
        monkeypatch.setattr(network.torso[1], "forward", look)
        network.policy_head.weight.data.mul_(100)
    tolerance = 1e-5 if precision == "float32" else 3e-2
    torch.testing.assert_close(plain(obs)[0], last(obs)[0], atol=tolerance, rtol=0)
    assert torch.equal(seen[0], seen[1])
    assert {image.dtype for image in seen} == {getattr(torch, precision)}
    assert not seen[1].is_contiguous() and seen[0].is_contiguous()
    assert seen[1].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last.policy(obs), last(obs)[0], atol=1e-6, rtol=0)


def _note(seen: list[Tensor], forward: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
    seen.append(given)
    return forward(given)


def reduced(norm: float, extra: float = 0.0) -> ReducedGradient:
    return ReducedGradient(np.zeros(1, np.float32), 1.0, 1.0, norm, extra)


def test_the_loss_scale_falls_with_an_overflow_and_grows_after_many_steps_without() -> None:
    scale = LossScale(dynamic=True)
    assert scale.skips(reduced(math.inf)) and scale.skips(reduced(math.nan))
    assert scale.value == INITIAL_LOSS_SCALE / 4
    for _ in range(GROWTH_STEPS - 1):
        assert not scale.skips(reduced(1.0))
    again = LossScale(dynamic=True)
    again.load_state(scale.state())
    assert scale.value == INITIAL_LOSS_SCALE / 4
    for one in (scale, again):
        assert not one.skips(reduced(1.0))
        assert one.metrics == {"loss_scale": INITIAL_LOSS_SCALE / 2}
    assert not scale.skips(reduced(math.inf, math.nan)), "a loss that is not finite is no overflow"
    scale.value = SMALLEST_LOSS_SCALE
    assert not scale.skips(reduced(math.inf)), "not to be cured by a smaller factor"
    scale.value, scale._steps = LARGEST_LOSS_SCALE, GROWTH_STEPS - 1
    assert not scale.skips(reduced(1.0)) and scale.value == LARGEST_LOSS_SCALE
    off = LossScale(dynamic=False)
    assert not off.skips(reduced(math.inf)) and off.value == 1 and off.state() == off.metrics == {}


@pytest.mark.parametrize("sizes", [(6,), (0, 6), (2, 4)])
@pytest.mark.parametrize("name", CONFIGS)
def test_an_overflow_of_one_learner_is_left_out_by_all(name: str, sizes: tuple[int, ...]) -> None:
    learners = [build(CONFIGS[name], model=low("float16")) for _ in sizes]
    for learner in learners:
        learner.loss_scale.value = LARGEST_LOSS_SCALE
    before = learners[0].parameters.sha256()
    batch = random_batch(DISCRETE, 5, 6, seed=0)
    batch.fields["reward"].mul_(100)
    shares = split(batch, sizes)
    (first,) = {result[0].applied for result in train(learners, [shares])}
    assert first and learners[0].parameters.sha256() == before
    assert learners[0].optimizer.steps == 0
    halvings = 6 if isinstance(CONFIGS[name], SurrogateConfig) else 1
    assert {learner.loss_scale.value for learner in learners} == {LARGEST_LOSS_SCALE / 2**halvings}
    train(learners, [shares] * 20)
    assert learners[0].optimizer.steps > 0
    assert len({learner.parameters.sha256() for learner in learners}) == 1
    state = learners[0].state()
    resumed = build(CONFIGS[name], model=low("float16"))
    resumed.load_state(state)
    assert resumed.loss_scale.value == learners[0].loss_scale.value < LARGEST_LOSS_SCALE / 2**halvings


@pytest.mark.parametrize("field", ["reward", "behavior_log_prob"])
@pytest.mark.parametrize("name", CONFIGS)
def test_damaged_data_are_no_overflow(name: str, field: str) -> None:
    learner = build(CONFIGS[name], model=low("float16"))
    batch = random_batch(DISCRETE, 5, 6, seed=0)
    batch.fields[field][0, 0] = math.nan
    start = learner.state()
    assert not learner.update(batch, LOCAL, 0.0).applied
    np.testing.assert_equal(learner.state(), start)


def test_the_factor_does_not_show_in_the_step() -> None:
    learners: list[ActorCriticAlgorithm] = []
    for value in (1.0, 64.0):
        learner = build(CONFIGS["impala"], model=low("float16"))
        learner.loss_scale.value = value
        result = learner.update(random_batch(DISCRETE, 5, 6, seed=0), LOCAL, 0.0)
        learners.append(learner)
        assert result.metrics["loss_scale"] == value
    np.testing.assert_allclose(
        learners[0].optimizer.exp_avg, learners[1].optimizer.exp_avg, rtol=0.02, atol=1e-6
    )
    assert build(CONFIGS["impala"], model=SMALL).state().keys() < learners[0].state().keys()
