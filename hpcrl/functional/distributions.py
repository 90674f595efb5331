"""Action distributions as plain functions of their parameters.

The torch functions serve the update, the numpy ones acting, where a call on a few hundred rows must cost
little more than its arithmetic. Continuous actions are vectors; their log-probability is the sum over the
dimensions.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]
Longs = npt.NDArray[np.int64]

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of int64 `action` [N] and entropy (nat) [N] under `logits` [N, choices]."""
    log_probs = torch.log_softmax(logits, -1)
    log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return log_prob, -(log_probs.exp() * log_probs).sum(-1)


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
