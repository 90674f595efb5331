"""Action distributions as plain functions of their parameters.

The torch functions serve the update, the numpy ones acting, where a call on a few hundred rows must cost
little more than its arithmetic. Continuous actions are vectors and multi-discrete ones have parts; log-probability and
entropy are sums over the dimensions or parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]
Longs = npt.NDArray[np.int64]

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
LOG_2 = math.log(2)
LEAST_LOG_PROB = -1000.0
"""The exponential of this is 0 in every type; unlike -infinity it times 0 is 0."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_WEIGHTS /= _WEIGHTS.sum()


def mask_logits(logits: Tensor, allowed: Tensor, choices: Sequence[int]) -> Tensor:
    """Logits [N, sum(choices)] with -infinity where not `allowed` (bool, same shape): such choices have probability 0.

    Their gradient is exactly 0. A part that allows nothing is left as it is: only rows that nobody uses are like that
    (`envs.require_choices`), and they must give numbers.
    """
    parts = allowed.split_with_sizes(list(choices), -1)
    allowed = torch.cat([part | ~part.any(-1, keepdim=True) for part in parts], -1)
    return torch.where(allowed, logits, -math.inf)


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of int64 `action` [N] and entropy (nat) [N] under `logits` [N, choices].

    Logits may be -infinity, though not all of a row; the entropy is then that of the other choices.
    """
    log_probs = torch.log_softmax(logits, -1)
    log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return log_prob, -(log_probs.exp() * log_probs.clamp(min=LEAST_LOG_PROB)).sum(-1)


def multi_categorical(logits: Tensor, choices: Sequence[int], action: Tensor) -> tuple[Tensor, Tensor]:
    """As `categorical`, of actions [N, parts] whose parts are independent; both results are sums over the parts.

    `logits` is [N, sum(choices)]: those of the first part, then those of the second, ...
    """
    parts = zip(logits.split_with_sizes(list(choices), -1), action.unbind(-1), strict=True)
    log_probs, entropies = zip(*(categorical(part, chosen) for part, chosen in parts), strict=True)
    return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density of `action` [N, dims] and entropy (nat) [N] under independent normals.

    `mean` is [N, dims], `log_std` [dims]; both results are sums over the dims.
    """
    standardized = (action - mean) * torch.exp(-log_std)
    log_std_sum = log_std.sum()
    dims = mean.shape[-1]
    log_prob = standardized.square().sum(-1) * -0.5 - (log_std_sum + dims * LOG_SQRT_2PI)
    entropy = log_std_sum + dims * (0.5 + LOG_SQRT_2PI)
    return log_prob, entropy.expand(log_prob.shape)


def tanh_gaussian(
    mean: Tensor, log_std: Tensor, half_width: Tensor, pre_tanh: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-density and entropy (nat), both [N], of the actions center + half_width * tanh(pre_tanh).

    `mean` and `pre_tanh` are [N, dims], `log_std` and `half_width` (above 0) [dims]; pre_tanh is normal. Change of
    variables as in Haarnoja et al. 2018 (appendix C), with the logarithm of the slope written so that nothing
    cancels however far the tanh is saturated; pre_tanh is never recovered from an action. The entropy has no closed
    form. It is integrated by Gauss and Hermite's rule with 16 nodes, exact to 2e-5 per dimension up to a standard
    deviation of 1, to 4e-3 at 2 and to 0.03 at 3; so it needs no random numbers.
    """
    log_prob, entropy = gaussian(mean, log_std, pre_tanh)
    log_half = half_width.log().sum()
    nodes, weights = (
        torch.as_tensor(values, dtype=mean.dtype, device=mean.device) for values in (_NODES, _WEIGHTS)
    )
    points = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes
    entropy = entropy + (_log_tanh_slope(points) * weights).sum((-2, -1)) + log_half
    return log_prob - _log_tanh_slope(pre_tanh).sum(-1) - log_half, entropy


def reparameterized_tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions tanh(mean + std * noise), [N, dims] in (-1, 1), and their log-densities (nat) [N].

    `mean`, `log_std` and the standard normal `noise` are [N, dims]. The gradient flows through the actions and through
    their log-densities (Haarnoja et al. 2018, appendix C), exact as in `tanh_gaussian`.
    """
    pre_tanh = mean + log_std.exp() * noise
    per_dim = noise.square() * -0.5 - log_std - _log_tanh_slope(pre_tanh)
    return pre_tanh.tanh(), per_dim.sum(-1) - mean.shape[-1] * LOG_SQRT_2PI


def _log_tanh_slope(pre_tanh: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), elementwise."""
    return 2 * (LOG_2 - pre_tanh - torch.nn.functional.softplus(-2 * pre_tanh))


def sample_categorical(logits: Floats, rng: np.random.Generator, *, greedy: bool) -> tuple[Longs, Floats]:
    """int64 actions [B] and their float32 log-probabilities [B] under `logits` [B, choices].

    One uniform number per row against the cumulated probabilities; greedy takes the first most likely choice.
    """
    # Choices first: numpy then works along the long axis.
    shifted = np.array(logits.T, order="C")
    shifted -= shifted.max(axis=0)
    cumulated = np.exp(shifted).cumsum(axis=0)
    total = cumulated[-1]
    # The threshold lies below the total, so the count never reaches the number of choices; <= rather than < keeps
    # choices of probability 0 out when the random number is 0.
    action: Longs = (
        shifted.argmax(axis=0) if greedy else (cumulated <= rng.random(len(logits)) * total).sum(axis=0)
    )
    return action, shifted[action, np.arange(len(logits))] - np.log(total)


def sample_multi_categorical(
    logits: Floats, choices: Sequence[int], rng: np.random.Generator, *, greedy: bool
) -> tuple[Longs, Floats]:
    """int64 actions [B, parts] and their float32 log-probabilities [B] under `logits` [B, sum(choices)]."""
    parts = np.split(logits, np.cumsum(choices)[:-1], axis=1)
    drawn = [sample_categorical(part, rng, greedy=greedy) for part in parts]
    return np.stack([action for action, _ in drawn], axis=1), sum(
        (log_prob for _, log_prob in drawn), np.zeros(len(logits), np.float32)
    )


def sample_gaussian(
    mean: Floats, log_std: Floats, rng: np.random.Generator, *, greedy: bool
) -> tuple[Floats, Floats]:
    """float32 actions [B, dims], not clipped, and their float32 log-densities [B]; greedy takes the mean."""
    dims = mean.shape[1]
    std = np.exp(log_std)
    noise = 0.0 if greedy else rng.standard_normal(mean.shape, dtype=np.float32)
    action: Floats = (mean + std * noise).astype(np.float32, copy=False)
    # From the rounded action, as the update will see it, not from the noise it was made of.
    standardized = (action - mean) / std
    log_prob: Floats = np.square(standardized).sum(axis=1) * np.float32(-0.5)
    return action, log_prob - np.float32(log_std.sum() + dims * LOG_SQRT_2PI)


def sample_tanh_gaussian(
    mean: Floats, log_std: Floats, half_width: Floats, rng: np.random.Generator, *, greedy: bool
) -> tuple[Floats, Floats]:
    """float32 pre_tanh [B, dims] of `tanh_gaussian`, and the float32 log-densities [B] of the actions they make."""
    pre_tanh, log_prob = sample_gaussian(mean, log_std, rng, greedy=greedy)
    log_slope = 2 * (np.float32(LOG_2) - pre_tanh - np.logaddexp(np.float32(0), -2 * pre_tanh))
    return pre_tanh, log_prob - log_slope.sum(axis=1) - np.log(half_width).sum()
