"""Which distribution stands for which actions, and what the environment gets of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hpcrl.config import ConfigError, ModelConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.models.action_distributions import (
    ActionDistribution,
    Categorical,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
    action_distribution,
)

INF = math.inf


def of(action: ActionSpec, wanted: str = "auto") -> ActionDistribution:
    env = EnvSpec(id="Test-v0", observation=ArraySpec(shape=(4,), dtype="float32"), action=action)
    return action_distribution(
        env, ModelConfig.parse({"action_distribution": wanted, "initial_log_std": -1.0})
    )


def box(*bounds: tuple[float, float]) -> ActionSpec:
    low, high = zip(*bounds, strict=True)
    return ActionSpec(kind="continuous", size=len(bounds), low=low, high=high)


CASES = [
    (ActionSpec(kind="discrete", size=3), "auto", Categorical, 3),
    (ActionSpec(kind="multi_discrete", size=3, choices=(2, 4, 3)), "auto", MultiCategorical, 9),
    (box((-1, 1), (-INF, 5)), "auto", Gaussian, 2),
    (box((-1, 1), (-INF, 5)), "gaussian", Gaussian, 2),
    (box((-1, 1), (2, 5)), "tanh_gaussian", TanhGaussian, 2),
]


@pytest.mark.parametrize(("action", "wanted", "kind", "outputs"), CASES)
def test_kinds_and_the_agreement_of_sampling_and_evaluation(
    action: ActionSpec, wanted: str, kind: type, outputs: int
) -> None:
    distribution = of(action, wanted)
    assert type(distribution) is kind
    assert distribution.num_outputs == outputs
    given = np.random.default_rng(0).normal(size=(50, outputs)).astype(np.float32)
    for greedy in (False, True):
        stored, log_prob = distribution.sample(given, np.random.default_rng(1), greedy=greedy)
        assert stored.shape == (50, *action.shape) and stored.dtype == action.dtype
        assert log_prob.shape == (50,) and log_prob.dtype == np.float32
        expected, entropy = distribution.evaluate(torch.from_numpy(given), torch.from_numpy(stored))
        assert entropy.shape == (50,)
        np.testing.assert_allclose(log_prob, expected.detach().numpy(), atol=1e-5)
        sent = distribution.to_env(stored)
        assert sent.shape == stored.shape and sent.dtype == stored.dtype
        assert (sent is stored) == (kind is not TanhGaussian)


def test_squashed_actions_fill_the_bounds() -> None:
    distribution = of(box((-1, 1), (2, 5), (-1e30, 1e30)), "tanh_gaussian")
    stored = np.array([[0, 0, 0], [40, 40, 40], [-40, -40, -40], [0.5, -0.5, 0]], np.float32)
    expected = [[0, 3.5, 0], [1, 5, 1e30], [-1, 2, -1e30], [math.tanh(0.5), 3.5 - 1.5 * math.tanh(0.5), 0]]
    np.testing.assert_allclose(distribution.to_env(stored), expected, rtol=1e-6)


def test_squashed_actions_stay_inside_the_bounds() -> None:
    """Center and half width are rounded: without a cut their sum and difference may lie beyond."""
    low, high = np.array([-1, -0.7, -1.9], np.float32), np.array([0.7, 0.5, 0.5], np.float32)
    distribution = of(box(*zip(low.tolist(), high.tolist(), strict=True)), "tanh_gaussian")
    sent = distribution.to_env(np.array([[40, 40, 40], [-40, -40, -40]], np.float32))
    np.testing.assert_array_equal(sent, [high, low])


def test_the_density_is_that_of_the_action_the_environment_gets() -> None:
    """Twice the range, half the density."""
    narrow, wide = of(box((-1, 1)), "tanh_gaussian"), of(box((0, 4)), "tanh_gaussian")
    outputs, stored = torch.zeros(3, 1), torch.tensor([[0.0], [1.0], [-9.0]])
    (density, entropy), (half, more) = (one.evaluate(outputs, stored) for one in (narrow, wide))
    torch.testing.assert_close(density - half, torch.full((3,), math.log(2)))
    torch.testing.assert_close(more - entropy, torch.full((3,), math.log(2)))


@pytest.mark.parametrize("bounds", [(-INF, 1.0), (0.0, INF), (1.0, 1.0)])
def test_bounds_that_cannot_be_scaled_to_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(
        ConfigError, match=r"model\.action_distribution=tanh_gaussian.*Test-v0.*dimension 1 of 2"
    ) as error:
        of(box((-1, 1), bounds), "tanh_gaussian")
    assert "use gaussian" in str(error.value)


@pytest.mark.parametrize("wanted", ["gaussian", "tanh_gaussian"])
@pytest.mark.parametrize("action", [CASES[0][0], CASES[1][0]])
def test_choices_have_no_density(action: ActionSpec, wanted: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"model\.action_distribution={wanted}.*{action.kind}.*Test-v0.*use auto"
    ):
        of(action, wanted)
