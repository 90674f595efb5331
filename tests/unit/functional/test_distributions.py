"""Distributions against torch.distributions, and sampling against its own probabilities."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from hpcrl.functional import distributions


def test_categorical_against_torch() -> None:
    logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)) * 5
    action = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    log_prob, entropy = distributions.categorical(logits, action)
    torch.testing.assert_close(log_prob, Categorical(logits=logits).log_prob(action))
    torch.testing.assert_close(entropy, Categorical(logits=logits).entropy())


@pytest.mark.parametrize("dims", [1, 3])
def test_gaussian_against_torch(dims: int) -> None:
    generator = torch.Generator().manual_seed(1)
    mean, action = torch.randn(5, dims, generator=generator), torch.randn(5, dims, generator=generator)
    log_std = torch.randn(dims, generator=generator)
    reference = Independent(Normal(mean, log_std.exp()), 1)
    log_prob, entropy = distributions.gaussian(mean, log_std, action)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())


def test_sampled_frequencies_and_log_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.2, 0.3], np.float32)) + np.float32(7)
    rows = np.tile(logits, (40_000, 1))
    action, log_prob = distributions.sample_categorical(rows, np.random.default_rng(0), greedy=False)
    assert action.dtype == np.int64
    assert log_prob.dtype == np.float32
    np.testing.assert_allclose(np.bincount(action) / len(rows), [0.5, 0.2, 0.3], atol=0.01)
    expected, _ = distributions.categorical(torch.from_numpy(rows), torch.from_numpy(action))
    np.testing.assert_allclose(log_prob, expected.numpy(), atol=1e-6)


def test_impossible_choices_are_never_taken() -> None:
    class Zeros:
        """The smallest number a generator can draw."""

        def random(self, size: int) -> np.ndarray:
            return np.zeros(size)

    class Largest:
        """The largest number a generator can draw."""

        def random(self, size: int) -> np.ndarray:
            return np.full(size, np.nextafter(1.0, 0.0))

    logits = np.array([[-200.0, 0.0, 0.5, -200.0]] * 3, np.float32)
    for rng, expected in ((Zeros(), 1), (Largest(), 2)):
        action, log_prob = distributions.sample_categorical(logits, rng, greedy=False)  # type: ignore[arg-type]
        assert action.tolist() == [expected] * 3
        assert np.isfinite(log_prob).all()


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (1, 4), (5, 1), (300, 18)])
@pytest.mark.parametrize("greedy", [False, True])
def test_shapes_and_untouched_logits(shape: tuple[int, int], greedy: bool) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=shape).astype(np.float32)
    before = logits.copy()
    action, log_prob = distributions.sample_categorical(logits, rng, greedy=greedy)
    np.testing.assert_array_equal(logits, before)
    assert action.shape == log_prob.shape == (shape[0],)
    assert ((action >= 0) & (action < shape[1])).all()
    if greedy:
        np.testing.assert_array_equal(action, logits.argmax(axis=1))


def test_gaussian_sampling() -> None:
    mean = np.tile(np.array([1.0, -2.0], np.float32), (40_000, 1))
    log_std = np.array([0.5, -1.0], np.float32)
    rng = np.random.default_rng(4)
    action, log_prob = distributions.sample_gaussian(mean, log_std, rng, greedy=False)
    assert action.dtype == log_prob.dtype == np.float32
    assert log_prob.shape == (40_000,)
    np.testing.assert_allclose(action.mean(axis=0), [1.0, -2.0], atol=0.03)
    np.testing.assert_allclose(action.std(axis=0), np.exp(log_std), rtol=0.02)
    expected, _ = distributions.gaussian(*(torch.from_numpy(x) for x in (mean, log_std, action)))
    np.testing.assert_allclose(log_prob, expected.numpy(), atol=1e-5)
    greedy, _ = distributions.sample_gaussian(mean, log_std, rng, greedy=True)
    np.testing.assert_array_equal(greedy, mean)


def test_not_a_number_gives_a_legal_action_and_shows_in_the_log_probability() -> None:
    logits = np.array([[np.nan, 0.0]], np.float32)
    action, log_prob = distributions.sample_categorical(logits, np.random.default_rng(0), greedy=False)
    assert action[0] in (0, 1)
    assert np.isnan(log_prob[0])


def masked_case(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every mask of 2 + 3 choices: logits, masks, and for each row the first allowed choice of each part (or 0)."""
    masks = torch.tensor(list(itertools.product([False, True], repeat=5)))
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(len(masks), 5, generator=generator) * 20).to(dtype).requires_grad_()
    action = torch.stack([part.int().argmax(-1) for part in masks.split([2, 3], -1)], -1)
    return logits, masks, action


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masked_choices_have_no_probability_and_no_gradient(dtype: torch.dtype) -> None:
    """P51: single choices, all, and none, in both parts."""
    logits, masks, action = masked_case(dtype)
    masked = distributions.mask_logits(logits, masks, (2, 3))
    log_prob, entropy = distributions.multi_categorical(masked, (2, 3), action)
    (log_prob + 3 * entropy).sum().backward()
    assert logits.grad is not None
    for values in (log_prob, entropy, logits.grad):
        assert torch.isfinite(values).all()
    split = (values.split([2, 3], -1) for values in (masked, logits.grad, masks))
    for part, grad, mask in zip(*split, strict=True):
        some = mask.any(-1, keepdim=True)
        probabilities = torch.softmax(part, -1)
        assert (probabilities[some & ~mask] == 0).all()
        assert (grad[some & ~mask] == 0).all()
        torch.testing.assert_close(probabilities.sum(-1), torch.ones_like(probabilities[:, 0]))
        assert (grad[mask.sum(-1) == 1] == 0).all(), "nothing is to be learned where there is no choice"


def test_masked_entropy_and_log_probability_are_those_of_the_allowed_choices() -> None:
    logits, masks, action = masked_case(torch.float32)
    masked = distributions.mask_logits(logits, masks, (2, 3))
    log_prob, entropy = distributions.multi_categorical(masked, (2, 3), action)
    for row, mask in enumerate(masks):
        parts = list(zip(logits[row].detach().split([2, 3]), mask.split([2, 3]), strict=True))
        if not all(allowed.any() for _, allowed in parts):
            continue
        expected = [Categorical(logits=values[allowed]) for values, allowed in parts]
        torch.testing.assert_close(entropy[row], sum(one.entropy() for one in expected))
        first = sum(one.log_prob(torch.tensor(0)) for one in expected)
        torch.testing.assert_close(log_prob[row], first)


def test_sampling_of_parts_heeds_masks_and_agrees_with_the_update() -> None:
    logits, masks, _ = masked_case(torch.float32)
    masked = distributions.mask_logits(logits, masks, (2, 3)).detach().repeat(50, 1)
    for greedy in (False, True):
        action, log_prob = distributions.sample_multi_categorical(
            masked.numpy(), (2, 3), np.random.default_rng(0), greedy=greedy
        )
        assert action.dtype == np.int64 and action.shape == (len(masked), 2)
        expected, _ = distributions.multi_categorical(masked, (2, 3), torch.from_numpy(action))
        assert torch.isfinite(expected).all(), "a choice that is not allowed was taken"
        np.testing.assert_allclose(log_prob, expected.numpy(), atol=1e-5)
        assert log_prob.dtype == np.float32


def test_parts_are_summed() -> None:
    """P62."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(7, 9, generator=generator)
    action = torch.stack([torch.randint(0, n, (7,), generator=generator) for n in (2, 4, 3)], -1)
    log_prob, entropy = distributions.multi_categorical(logits, (2, 4, 3), action)
    parts = [Categorical(logits=part) for part in logits.split([2, 4, 3], -1)]
    torch.testing.assert_close(log_prob, sum(p.log_prob(a) for p, a in zip(parts, action.T, strict=True)))
    torch.testing.assert_close(entropy, sum(p.entropy() for p in parts))
    one, one_entropy = distributions.multi_categorical(logits[:, :4], (4,), action[:, 1:2])
    assert torch.equal(one, distributions.categorical(logits[:, :4], action[:, 1])[0])
    assert torch.equal(one_entropy, distributions.categorical(logits[:, :4], action[:, 1])[1])


def log_tanh_slope(u: np.ndarray) -> np.ndarray:
    return 2 * (math.log(2) - u - np.logaddexp(0, -2 * u))


@pytest.mark.parametrize("mean", [-20.0, -3.0, 0.0, 0.7, 20.0])
@pytest.mark.parametrize("log_std", [-3.0, 0.0, 0.7])
@pytest.mark.parametrize("half_width", [1.0, 0.25, 40.0])
def test_the_density_of_squashed_actions(mean: float, log_std: float, half_width: float) -> None:
    """P61: it integrates to 1 over the actions, and the entropy is minus the mean of its logarithm."""
    points = torch.linspace(mean - 12, mean + 12, 60_001, dtype=torch.float64)
    points = mean + (points - mean) * math.exp(log_std)
    arguments = [torch.tensor([value], dtype=torch.float64) for value in (log_std, half_width)]
    log_prob, entropy = distributions.tanh_gaussian(
        torch.full((len(points), 1), mean, dtype=torch.float64), *arguments, points[:, None]
    )
    # d action = half_width * (1 - tanh^2) du, in logarithms: the slope underflows where the tanh is saturated
    slope = torch.from_numpy(log_tanh_slope(points.numpy())) + math.log(half_width)
    weight = (log_prob + slope).exp()
    assert torch.trapezoid(weight, points).item() == pytest.approx(1, abs=1e-6)
    exact = -torch.trapezoid(weight * log_prob, points).item()
    assert entropy[0].item() == pytest.approx(exact, abs=2e-5 if log_std <= 0 else 4e-3)


def test_the_entropy_falls_where_the_squashing_saturates_and_its_gradient_says_so() -> None:
    """Against differences of the integral: the bonus pulls the mean to the middle and widens a narrow policy."""
    mean = torch.tensor([[1.5, -1.5]], dtype=torch.float64, requires_grad=True)
    log_std = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    ones = torch.ones(2, dtype=torch.float64)
    distributions.tanh_gaussian(mean, log_std, ones, torch.zeros(1, 2, dtype=torch.float64))[
        1
    ].sum().backward()
    assert mean.grad is not None and log_std.grad is not None
    z = np.linspace(-12, 12, 40_001)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    def exact(m: float, s: float) -> float:
        return math.log(s) + np.trapezoid(density * log_tanh_slope(m + s * z), z)

    s, step = math.exp(-1), 1e-4
    by_mean = (exact(1.5 + step, s) - exact(1.5 - step, s)) / (2 * step)
    by_log_std = (exact(1.5, s * math.exp(step)) - exact(1.5, s * math.exp(-step))) / (2 * step)
    assert mean.grad[0].tolist() == pytest.approx([by_mean, -by_mean], abs=1e-4)
    assert by_mean < 0 < by_log_std
    assert log_std.grad.tolist() == pytest.approx([by_log_std] * 2, abs=1e-4)


@pytest.mark.parametrize("pre_tanh", [-30.0, 0.0, 8.0, 30.0])
def test_saturated_actions_have_finite_gradients_in_float32(pre_tanh: float) -> None:
    mean, log_std = torch.zeros(1, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    log_prob, entropy = distributions.tanh_gaussian(mean, log_std, torch.ones(1), torch.tensor([[pre_tanh]]))
    (log_prob + entropy).sum().backward()
    assert mean.grad is not None and log_std.grad is not None
    assert torch.isfinite(torch.cat((mean.grad.ravel(), log_std.grad, log_prob.detach()))).all()
    assert mean.grad.item() == pytest.approx(pre_tanh, abs=1e-4)


def test_squashed_sampling_agrees_with_the_update() -> None:
    rng = np.random.default_rng(5)
    mean = rng.normal(scale=5, size=(200, 3)).astype(np.float32)
    log_std, half_width = np.array([0.5, -1, -8], np.float32), np.array([0.5, 2, 10], np.float32)
    for greedy in (False, True):
        pre_tanh, log_prob = distributions.sample_tanh_gaussian(mean, log_std, half_width, rng, greedy=greedy)
        assert pre_tanh.dtype == log_prob.dtype == np.float32
        assert np.array_equal(pre_tanh, mean) == greedy
        tensors = (torch.from_numpy(x) for x in (mean, log_std, half_width, pre_tanh))
        expected, _ = distributions.tanh_gaussian(*tensors)
        np.testing.assert_allclose(log_prob, expected.numpy(), rtol=1e-5, atol=1e-4)


def test_the_reparameterized_log_density_has_the_gradient_of_the_density() -> None:
    """Along the noise: d log pi(f(noise)) by the chain rule through `tanh_gaussian`, which knows nothing of noise."""
    generator = torch.Generator().manual_seed(0)
    mean, log_std, noise = (torch.randn(6, 2, generator=generator, dtype=torch.float64) for _ in range(3))
    mean.requires_grad_()
    log_std.requires_grad_()
    action, log_prob = distributions.reparameterized_tanh_gaussian(mean, log_std, noise)
    assert action.shape == (6, 2) and log_prob.shape == (6,)
    found = torch.autograd.grad((log_prob * torch.arange(1.0, 7.0)).sum(), (mean, log_std))
    rows = [
        distributions.tanh_gaussian(m, s, torch.ones(2, dtype=torch.float64), m + s.exp() * n)[0]
        for m, s, n in zip(mean.split(1), log_std.unbind(), noise.split(1), strict=True)
    ]
    torch.testing.assert_close(log_prob, torch.cat(rows))
    expected = torch.autograd.grad((torch.cat(rows) * torch.arange(1.0, 7.0)).sum(), (mean, log_std))
    torch.testing.assert_close(found, expected)


def test_the_gradient_of_a_saturated_action_is_finite() -> None:
    mean = torch.tensor([[30.0], [-30.0], [90.0]], requires_grad=True)
    log_std = torch.tensor([[-20.0], [2.0], [0.0]], requires_grad=True)
    action, log_prob = distributions.reparameterized_tanh_gaussian(mean, log_std, torch.ones(3, 1))
    (action.sum() + log_prob.sum()).backward()
    for values in (log_prob, mean.grad, log_std.grad):
        assert values is not None and torch.isfinite(values).all()
