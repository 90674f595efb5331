"""Distributions against torch.distributions, and sampling against its own probabilities."""

from __future__ import annotations

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
