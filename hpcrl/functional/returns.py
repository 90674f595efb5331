"""Advantages and value targets, by one backward recursion over time.

Arrays are time-major: [T, B], or [T] for a single sequence. T and B may be 0. `terminated` and `truncated`
stay apart: the bootstrap coefficient is gamma * (1 - terminated), the trace coefficient
1 - (terminated or truncated). Nothing here carries a gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Gae(NamedTuple):
    """Result of `gae`, both [T, B]."""

    advantages: Tensor
    value_targets: Tensor
    """advantages + values, the lambda-return"""


class VTrace(NamedTuple):
    """Result of `vtrace`, both [T, B]."""

    value_targets: Tensor
    """vs of the paper"""
    advantages: Tensor
    """factor of grad log pi: pg_rho_t * (r_t + discount_t * vs_{t+1} - V_t)"""


def discount(terminated: Tensor, gamma: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Weight of the next step's value, gamma * (1 - terminated), in the shape of the bool `terminated`."""
    return terminated.logical_not().to(dtype).mul_(gamma)


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lambda_: float,
) -> Gae:
    """Generalized advantage estimation (Schulman et al. 2016, eq. 16).

    delta_t = r_t + gamma * (1 - terminated_t) * V(s'_t) - V(s_t)
    A_t = delta_t + gamma * lambda * (1 - (terminated_t or truncated_t)) * A_{t+1}, and A_T = 0

    Args:
        reward: float [T, B].
        value: float [T, B], V of the observation the action was chosen from.
        next_value: float [T, B], V of the true successor; at an end that of the last observation, never that
            of the next episode's first.
        terminated: bool [T, B].
        truncated: bool [T, B].
        gamma: discount factor per env_step.
        lambda_: mixing parameter; 0 is one-step, 1 is Monte Carlo.
    """
    delta = reward + discount(terminated, gamma, value.dtype) * next_value - value
    trace = discount(terminated | truncated, gamma * lambda_, value.dtype)
    advantages = _accumulate_backward(delta, trace)
    return Gae(advantages, advantages + value)


@torch.no_grad()
def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    log_rho: Tensor,
    gamma: float,
    lambda_: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
) -> VTrace:
    """V-trace targets and advantages (Espeholt et al. 2018, eq. 1 and section 4.2).

    rho_t = min(rho_bar, w_t), c_t = lambda * min(c_bar, w_t), w_t = exp(log_rho_t)
    vs_t = V_t + acc_t
    acc_t = rho_t * (r_t + gamma * (1 - terminated_t) * V(s'_t) - V_t) + gamma * c_t * acc_{t+1}
    advantage_t = min(pg_rho_bar, w_t) * (r_t + gamma * (1 - terminated_t) * X_t - V_t)

    The carried term is dropped where step t ends an episode or is last; X_t is vs_{t+1} or, there, V(s'_t).

    Args:
        reward: float [T, B].
        value: float [T, B].
        next_value: float [T, B], V of the true successor, as for `gae`.
        terminated: bool [T, B].
        truncated: bool [T, B].
        log_rho: float [T, B], log pi(a|s) - log mu(a|s). Clipped before exp, so that it cannot overflow.
        gamma: discount factor per env_step.
        lambda_: mixing of the trace.
        rho_bar: cap of the weight of the temporal difference, > 0.
        c_bar: cap of the trace coefficient, > 0.
        pg_rho_bar: cap of the weight of the advantage, > 0.
    """
    bootstrap = discount(terminated, gamma, value.dtype)
    ended = terminated | truncated
    rho = _capped_exp(log_rho, rho_bar)
    c = rho if c_bar == rho_bar else _capped_exp(log_rho, c_bar)
    pg_rho = rho if pg_rho_bar == rho_bar else _capped_exp(log_rho, pg_rho_bar)
    delta = rho * (reward + bootstrap * next_value - value)
    trace = discount(ended, gamma * lambda_, value.dtype) * c
    targets = value + _accumulate_backward(delta, trace)
    next_target = next_value.clone()
    next_target[:-1] = torch.where(ended[:-1], next_value[:-1], targets[1:])
    return VTrace(targets, pg_rho * (reward + bootstrap * next_target - value))


def _capped_exp(log_rho: Tensor, cap: float) -> Tensor:
    return log_rho.clamp(max=math.log(cap)).exp_()


def _accumulate_backward(delta: Tensor, trace: Tensor) -> Tensor:
    """Solve x_t = delta_t + trace_t * x_{t+1} over axis 0, x after the end = 0; one operation per step."""
    result = delta.clone()
    rows, coefficients = result.unbind(0), trace.unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(coefficients[t], rows[t + 1])
    return result
