"""Losses: shapes, independence of samples, extreme ratios, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hpcrl.functional import distributions, losses

EXTREMES = [5.0, -5.0, 50.0, -50.0, 500.0, -500.0, math.inf, -math.inf]


def per_sample_losses(seed: int = 0) -> dict[str, Tensor]:
    """Every loss of a batch of 5 with 3 action dims or 3 choices."""
    generator = torch.Generator().manual_seed(seed)
    log_std = torch.randn(3, generator=generator)

    def all_losses(order: list[int]) -> dict[str, Tensor]:
        generator.manual_seed(seed + 1)
        mean, action = (torch.randn(5, 3, generator=generator)[order] for _ in range(2))
        a, b, c = (torch.randn(5, generator=generator)[order] for _ in range(3))
        choice = torch.tensor([0, 1, 2, 0, 1])[order]
        gaussian, gaussian_entropy = distributions.gaussian(mean, log_std, action)
        categorical, entropy = distributions.categorical(mean, choice)
        return {
            "gaussian": gaussian,
            "gaussian_entropy": gaussian_entropy,
            "categorical": categorical,
            "entropy": entropy,
            "surrogate": losses.clipped_surrogate_loss(gaussian - a, b, 0.2),
            "dual": losses.clipped_surrogate_loss(categorical - a, b, 0.2, 3.0),
            "policy_gradient": losses.policy_gradient_loss(categorical, a),
            "value": losses.value_loss(a, b),
            "clipped_value": losses.clipped_value_loss(a, b, c, 0.3),
            "kl": losses.approx_kl(a),
            "outside": losses.outside_trust_interval(a, 0.2),
        }

    order = [3, 0, 4, 1, 2]
    plain, permuted = all_losses([0, 1, 2, 3, 4]), all_losses(order)
    for name, loss in plain.items():
        assert torch.equal(loss[order], permuted[name]), name
    return plain


def test_one_number_per_sample_and_permutation_permutes() -> None:
    for name, loss in per_sample_losses().items():
        assert loss.shape == (5,), name


def test_a_sample_does_not_depend_on_the_others() -> None:
    log_ratio, advantage = torch.tensor([0.1, 0.2, -0.4]), torch.tensor([1.0, -2.0, 3.0])
    whole = losses.clipped_surrogate_loss(log_ratio, advantage, 0.2, 3.0)
    for i in range(3):
        alone = losses.clipped_surrogate_loss(log_ratio[i : i + 1], advantage[i : i + 1], 0.2, 3.0)
        assert torch.equal(whole[i : i + 1], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("log_ratio", EXTREMES)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_extreme_ratios_stay_finite(
    log_ratio: float, advantage: float, dual_clip: float | None, dtype: torch.dtype
) -> None:
    value = torch.tensor([log_ratio], dtype=dtype).requires_grad_()
    loss = losses.clipped_surrogate_loss(value, torch.tensor([advantage], dtype=dtype), 0.2, dual_clip)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert value.grad is not None
    assert torch.isfinite(value.grad).all()
    assert torch.isfinite(value.grad.square()).all(), "the gradient's norm must be finite too"
    assert torch.isfinite(losses.approx_kl(value.detach())).all()
    assert torch.isfinite(losses.capped_weight(value, None).square()).all()
    assert losses.outside_trust_interval(value.detach(), 0.2).all()
    if dual_clip is not None:
        assert abs(loss.item()) <= dual_clip * abs(advantage)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("log_ratio", [*EXTREMES, math.nan])
def test_what_is_masked_before_the_loss_has_no_gradient(log_ratio: float, dtype: torch.dtype) -> None:
    value = torch.tensor([log_ratio, 0.1], dtype=dtype).requires_grad_()
    masked = value.masked_fill(torch.tensor([True, False]), 0.0)
    loss = losses.clipped_surrogate_loss(masked, torch.ones(2, dtype=dtype), 0.2, 3.0)
    torch.dot(torch.tensor([0.0, 1.0], dtype=dtype), loss).backward()
    assert value.grad is not None
    assert value.grad[0] == 0
    assert value.grad[1] != 0


def test_nan_is_not_hidden() -> None:
    loss = losses.clipped_surrogate_loss(torch.tensor([math.nan]), torch.tensor([1.0]), 0.2)
    assert torch.isnan(loss).all()
    assert torch.isnan(losses.approx_kl(torch.tensor([math.nan]))).all()


@pytest.mark.parametrize("dual_clip", [1.0, 0.5, -3.0])
def test_dual_clip_must_exceed_one(dual_clip: float) -> None:
    with pytest.raises(ValueError, match=r"algorithm\.dual_clip"):
        losses.clipped_surrogate_loss(torch.zeros(1), torch.zeros(1), 0.2, dual_clip)


def test_constants_carry_no_gradient() -> None:
    value, other = torch.tensor([1.0]).requires_grad_(), torch.tensor([3.0]).requires_grad_()
    losses.value_loss(value, other).sum().backward()
    losses.policy_gradient_loss(value, other).sum().backward()
    assert other.grad is None
    assert value.grad is not None
    assert value.grad.item() == (1.0 - 3.0) - 3.0


def test_no_samples() -> None:
    empty = torch.zeros(0)
    assert losses.clipped_surrogate_loss(empty, empty, 0.2, 3.0).shape == (0,)
    assert losses.clipped_value_loss(empty, empty, empty, 0.2).shape == (0,)


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_slopes_are_those_of_the_losses(dual_clip: float | None) -> None:
    """On a grid that lies on both sides of every clip, and beyond the largest ratio."""
    ratios = torch.tensor([-40.0, -2.0, -0.1, 0.0, 0.1, 0.3, 1.0, 31.0], dtype=torch.float64)
    log_ratio, advantage = (part.flatten() for part in torch.meshgrid(ratios, ratios + 0.05, indexing="ij"))
    moved = log_ratio.clone().requires_grad_()
    loss = losses.clipped_surrogate_loss(moved, advantage, 0.2, dual_clip)
    (slope,) = torch.autograd.grad(loss.sum(), moved)
    found = losses.clipped_surrogate_slope(log_ratio, advantage, loss.detach())
    torch.testing.assert_close(found, slope)
    value, target = log_ratio.clone().requires_grad_(), advantage
    behavior = torch.linspace(-3, 3, len(value), dtype=torch.float64)
    loss = losses.clipped_value_loss(value, target, behavior, 0.3)
    (slope,) = torch.autograd.grad(loss.sum(), value)
    torch.testing.assert_close(losses.clipped_value_slope(log_ratio, target, behavior, 0.3), slope)
