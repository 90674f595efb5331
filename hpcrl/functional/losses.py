"""Losses per sample: shapes in equal shapes out, so that callers take masked sums over all learners.

Every input has the same shape [N] (or any other common shape); nothing is averaged or broadcast here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

MAX_LOG_RATIO = 30.0
"""Log ratios are cut here before exp: 1e13, far outside any trust interval, and its square is finite."""


def clipped_surrogate_loss(
    log_ratio: Tensor, advantage: Tensor, clip_epsilon: float, dual_clip: float | None = None
) -> Tensor:
    """Minus PPO's objective (Schulman et al. 2017, eq. 7), optionally with dual clip (Ye et al. 2020, eq. 5).

    P = min(r * A, clip(r, 1 - epsilon, 1 + epsilon) * A), r = exp(log_ratio)
    With dual clip c > 1 the objective of A < 0 is max(P, c * A): no ratio can make the loss unbounded.

    Args:
        log_ratio: float [N], target_log_prob - behavior_log_prob; carries the gradient.
        advantage: float [N], constant.
        clip_epsilon: half width of the trust interval.
        dual_clip: c > 1, or None for plain PPO.

    Raises:
        ValueError: dual_clip is not above 1.
    """
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - clip_epsilon, 1 + clip_epsilon)
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is not None:
        if dual_clip <= 1:
            raise ValueError(f"dual_clip={dual_clip} is not above 1; algorithm.dual_clip=3 is usual")
        objective = torch.maximum(objective, -dual_clip * advantage.abs())
    return -objective


def clipped_surrogate_slope(log_ratio: Tensor, advantage: Tensor, loss: Tensor) -> Tensor:
    """Derivative by log_ratio [N] of the `loss` that `clipped_surrogate_loss` gave for the same arguments.

    Where no clip decides, the loss is -r * A, which is its own derivative, as r = exp(log_ratio); else it is constant.
    """
    unclipped = log_ratio.clamp(max=MAX_LOG_RATIO).exp() * -advantage
    return loss.masked_fill((loss != unclipped) | (log_ratio > MAX_LOG_RATIO), 0.0)


def capped_weight(log_ratio: Tensor, cap: float | None) -> Tensor:
    """min(cap, exp(log_ratio)) [N], a constant; without a cap cut at exp(MAX_LOG_RATIO).

    Times `clipped_surrogate_loss` of log pi - log pi_prox, with log_ratio = log pi_prox - log mu, it is the loss of
    decoupled PPO (Hilton et al. 2022, eq. 4; the cap: Fu et al. 2025).
    """
    limit = MAX_LOG_RATIO if cap is None else min(MAX_LOG_RATIO, math.log(cap))
    return log_ratio.detach().clamp(max=limit).exp()


def clipped_target_log_prob(target_log_prob: Tensor, behavior_log_prob: Tensor, cap: float) -> Tensor:
    """Log-probabilities [N] that the ratio of IMPACT is taken against, constants (Luo et al. 2020, section 3.1).

    min(mu / pi_target, cap) * pi / mu = pi / max(pi_target, mu / cap), so that `clipped_surrogate_loss` of log pi minus
    this is the loss of IMPACT.
    """
    return torch.maximum(target_log_prob, behavior_log_prob - math.log(cap)).detach()


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-log_prob * advantage [N]; only `log_prob` carries the gradient."""
    return -log_prob * advantage.detach()


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """0.5 * (value - target)^2 [N]; only `value` carries the gradient."""
    return (value - target.detach()).square() * 0.5


def huber_loss(value: Tensor, target: Tensor) -> Tensor:
    """0.5 e^2, or |e| - 0.5 where |e| > 1, of e = value - target [N]; only `value` carries the gradient."""
    return functional.huber_loss(value, target.detach(), reduction="none")


def clipped_value_loss(value: Tensor, target: Tensor, behavior_value: Tensor, clip: float) -> Tensor:
    """Larger one of the losses [N] of `value` and of `value` moved at most `clip` from `behavior_value`."""
    near = behavior_value + (value - behavior_value).clamp(-clip, clip)
    return torch.maximum(value_loss(value, target), value_loss(near, target))


def clipped_value_slope(value: Tensor, target: Tensor, behavior_value: Tensor, clip: float) -> Tensor:
    """Derivative by `value` [N] of `clipped_value_loss`: the error of `value`, or 0 where the clipped one counts."""
    change = value - behavior_value
    near = (behavior_value + change.clamp(-clip, clip) - target).abs()
    error = value - target
    return error.masked_fill((near > error.abs()) & (change.abs() > clip), 0.0)


def approx_kl(log_ratio: Tensor) -> Tensor:
    """exp(l) - 1 - l [N] with l = log_ratio: unbiased, never negative estimate of KL(behavior, target)."""
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(log_ratio) - log_ratio


def outside_trust_interval(log_ratio: Tensor, clip_epsilon: float) -> Tensor:
    """Where |exp(log_ratio) - 1| > clip_epsilon, bool [N]."""
    return torch.expm1(log_ratio).abs() > clip_epsilon


def least_value_target(
    reward: Tensor, discount: Tensor, next_values: Tensor, entropy_bonus: Tensor | None = None
) -> Tensor:
    """reward + discount * (min_i next_values_i + entropy_bonus) [N], a constant.

    The target of clipped double Q-learning (Fujimoto et al. 2018, algorithm 1) and of SAC (Haarnoja et al. 2018b,
    eq. 2 and 3, the bonus being -temperature * log_prob of the next action).

    Args:
        reward: float [N].
        discount: float [N], 0 after a terminated episode.
        next_values: float [K, N], of K target critics.
        entropy_bonus: float [N].
    """
    value = next_values.amin(0)
    return (reward + discount * (value if entropy_bonus is None else value + entropy_bonus)).detach()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """-log_temperature * (log_prob + target_entropy) [N]; only `log_temperature` [] carries the gradient.

    The form of Haarnoja et al.'s own code: its gradient does not fade with the temperature, as that of their paper's
    eq. 18 does, in which the temperature stands instead of its logarithm.
    """
    return -log_temperature * (log_prob.detach() + target_entropy)
