"""Targets of action values, their rescaling, and how to explore with them.

Rows and columns do not touch each other. Nothing here carries a gradient.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]


def greedy_value(values: Tensor, selector: Tensor) -> Tensor:
    """The value [...] of the action that `selector` prefers, both [..., actions].

    values of the target network: with those of the learned network as selector it is the double form (van Hasselt et
    al. 2016), with `values` themselves the maximum. Actions whose selector is -infinity are never taken.
    """
    best = selector.detach().argmax(-1, keepdim=True)
    return values.detach().gather(-1, best).squeeze(-1)


@torch.no_grad()
def n_step_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, steps: int
) -> Tensor:
    """Returns [T, B] that look `steps` ahead, fewer where an episode or the sequence ends before (Sutton 1988).

    G_t = sum of gamma^k r_{t+k} over k < m, + gamma^m (1 - terminated) V(s_{t+m}); a truncated episode counts the value
    of its last observation.

    Args:
        reward: float [T, B].
        next_value: float [T, B], V of the true successor, as for `returns.gae`.
        terminated: bool [T, B].
        truncated: bool [T, B].
        gamma: discount factor per env_step.
        steps: n >= 1.
    """
    weight = terminated.logical_not().to(reward.dtype) * gamma
    ended = terminated | truncated
    result = reward + weight * next_value
    one_step = result
    for _ in range(min(steps, len(reward)) - 1):
        longer = one_step.clone()
        ahead = reward[:-1] + weight[:-1] * result[1:]
        longer[:-1] = torch.where(ended[:-1], one_step[:-1], ahead)
        result = longer
    return result


def rescale(value: Tensor, epsilon: float) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018, proposition A.2), exact near 0."""
    size = value.abs()
    return value / ((size + 1).sqrt() + 1) + epsilon * value


def rescale_inverse(value: Tensor, epsilon: float) -> Tensor:
    """The inverse of `rescale`, epsilon >= 0.

    With s = sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) it is sign(x) (u^2 - 1), u = (s - 1) / (2 epsilon). Written as
    (u - 1)(u + 1) with u - 1 = 2 |x| / (s + 1 + 2 epsilon), in which nothing cancels: in float32 the usual form is
    wrong in the third digit for small x.
    """
    size = value.abs()
    root = (1 + 4 * epsilon * (size + 1 + epsilon)).sqrt()
    above = 2 / (root + 1 + 2 * epsilon)
    return value * above * (size * above + 2)


def sequence_priority(errors: Tensor, valid: Tensor, eta: float) -> Tensor:
    """eta max |error| + (1 - eta) mean |error| over the valid env_steps of each column; [T, C] gives [C].

    Kapturowski et al. 2019, section 2.3. 0 for a column without a valid env_step.
    """
    sizes = errors.abs().masked_fill(~valid, 0.0)
    count = valid.sum(0).clamp(min=1)
    return eta * sizes.amax(0) + (1 - eta) * sizes.sum(0) / count


def epsilon_ladder(envs: npt.NDArray[np.int64], num_envs: int, base: float, exponent: float) -> Floats:
    """base^(1 + exponent i / (N - 1)), float32 [B], for the environments i of N (Horgan et al. 2018, section 4.1).

    With a single environment: base.
    """
    share = envs / max(1, num_envs - 1)
    return np.asarray(base ** (1 + exponent * share), np.float32)


def epsilon_greedy(values: Floats, epsilon: Floats | None, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The actions int64 [B] of the largest `values` [B, actions], each with probability epsilon [B] a random one.

    Actions of value -infinity are not allowed and not drawn. Two random numbers per row, none without epsilon.
    """
    greedy: npt.NDArray[np.int64] = values.argmax(axis=1)
    if epsilon is None:
        return greedy
    draws = rng.random((2, len(values)))
    allowed = (values > -np.inf).cumsum(axis=1)
    number = (draws[1] * allowed[:, -1]).astype(np.int64)
    drawn: npt.NDArray[np.int64] = (allowed > number[:, np.newaxis]).argmax(axis=1)
    return np.where(draws[0] < epsilon, drawn, greedy)
