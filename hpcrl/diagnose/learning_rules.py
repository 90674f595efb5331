"""Rules about learning: how far off-policy it is, whether the policy and the value are well."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcrl.diagnose.advice import Change, allowed, check_env, lower_rate, rounded, setting
from hpcrl.diagnose.finding import Finding
from hpcrl.diagnose.view import QUARTERS, Values, View

FEWEST_UPDATES = 20
"""Five a quarter: a median of fewer is one of chance."""
FEWEST_FOR_VALUES = 40
"""A value function may need some tens of updates before it explains anything."""
LARGEST_LOG_RHO = math.log(2)
"""Of the 90 % quantile: a tenth of the env_steps count double or half, and what a cap cuts off is biased."""
LEAST_LAG = 2.0
"""updates; weights that are far from one at less come from the size of the steps, and less lag would not help."""
LARGEST_CLIP_FRACTION = 0.3
"""PPO means to clip about a tenth; where it clips a third, that much of the batch has no gradient left."""
COLLAPSED = 0.05
"""Of the initial policy's entropy: nineteen of twenty parts of the exploration are gone."""
NO_ENTROPY = 0.02
"""nat; of two choices one is taken in 3 of 1000 env_steps. For policies that are past exploring after one update."""
LEAST_EXPLAINED = 0.05
"""Of the variance of the returns: below, advantages are the returns themselves, with all their noise."""
SMALL_LOSS = 0.1
"""Of what the value loss was: below, targets hardly vary any more, as where every episode lasts as long as it may, and
there is nothing left to explain."""


def off_policy(view: View) -> Finding | None:
    """Importance weights far from one."""
    found = _worst_quarter(view, "log_rho_p90")
    if found is None or found[1] <= LARGEST_LOG_RHO:
        return None
    quarter, value = found
    lag = float(np.nanmedian(_part(view["updates"]["lag_mean"], quarter)))
    what = (
        f"a tenth of the env_steps have importance weights above {math.exp(value):.2g} or below "
        f"{math.exp(-value):.2g} (|log rho|, 90 % quantile, {value:.2f} in quarter {quarter + 1} of the updates; "
        f"up to {LARGEST_LOG_RHO:.2f} is well), at a mean lag of {lag:.1f} updates"
    )
    changes = [lower_rate(view.config, "the policy changes less from update to update")]
    if lag >= LEAST_LAG and not view.synchronous:
        less = setting(
            "lag.max_lag", int(lag // 2), f"half the lag of now, with lag.max_lag={view.get('lag.max_lag')}"
        )
        changes.insert(0, less)
    return Finding(what, allowed(view.config, changes), {"log_rho_p90": value, "lag_mean": lag})


def clipping(view: View) -> Finding | None:
    """Too large a share of ratios clipped."""
    found = _worst_quarter(view, "clip_fraction")
    if found is None or found[1] <= LARGEST_CLIP_FRACTION:
        return None
    quarter, value = found
    what = (
        f"{100 * value:.0f} % of the env_steps were clipped (quarter {quarter + 1} of the updates; up to "
        f"{100 * LARGEST_CLIP_FRACTION:.0f} % is well): the policy leaves its trust interval within an update"
    )
    return Finding(what, lower_rate(view.config, "smaller steps within it"), {"clip_fraction": value})


def entropy(view: View) -> Finding | None:
    """A policy of discrete actions that has stopped to explore.

    The entropy of Gaussians goes below zero as they narrow, in good order, and does not stay in this range.
    """
    values = view["updates"]["entropy"]
    if not np.isfinite(values).any():
        return None
    view.need_updates(FEWEST_UPDATES)
    first = float(np.nanmax(view.initial["entropy"]))
    last = values[-(len(values) // QUARTERS) :]
    if not (first > 0 and (last >= 0).all() and (last <= max(COLLAPSED * first, NO_ENTROPY)).all()):
        return None
    now = float(np.median(last))
    what = (
        f"the policy's entropy has fallen to {now:.3g} nat, {100 * now / first:.1f} % of the {first:.3g} it began "
        f"with: it hardly tries anything any more (below {100 * COLLAPSED:.0f} %, or {NO_ENTROPY:g} nat)"
    )
    own = float(view.get("algorithm.entropy_coefficient", 0.0))
    changes = [
        setting(
            "algorithm.entropy_coefficient", rounded(max(3 * own, 0.01)), f"now {own:g}; keeps it exploring"
        ),
        lower_rate(view.config, "it gets there less soon"),
    ]
    return Finding(what, allowed(view.config, changes), {"entropy": now, "initial_entropy": first})


def value(view: View) -> Finding | None:
    """A value function that explains nothing of the returns."""
    quarters = view.quarters("explained_variance", FEWEST_FOR_VALUES)
    if quarters is None or not quarters[-1] < LEAST_EXPLAINED:
        return None
    losses = view.quarters("value_loss", FEWEST_FOR_VALUES)
    if losses is not None and losses[-1] < SMALL_LOSS * np.nanmax(losses):
        return None
    last = float(quarters[-1])
    what = (
        f"the value explains {last:.2f} of the variance of its targets in the last quarter of the updates (1 is all, "
        f"0 nothing, less is worse than a constant; above {LEAST_EXPLAINED:g} is well)"
    )
    own = view.get("algorithm.value_coefficient")
    changes = [lower_rate(view.config, "the value jumps past its targets")]
    if own is not None and last > -LEAST_EXPLAINED:
        raised = rounded(max(2 * float(own), 0.5))
        changes = [
            setting("algorithm.value_coefficient", raised, f"now {own:g}; the value is hardly learned"),
            *changes,
        ]
    return Finding(what, allowed(view.config, changes), {"explained_variance": last})


def nonfinite(view: View) -> Finding | None:
    """Updates that were not applied."""
    updates = view["updates"]
    lost = updates[~updates["applied"]]
    if not len(lost):
        return None
    first = int(lost["update"][0])
    where = f"{len(lost)} of {len(updates)} updates were not applied, since their gradient was not finite; the first is"
    saved = sorted((view.run / "logs").glob("nonfinite-*.h5"))
    kept = f"; its batch is {saved[0]}" if saved else ""
    numbers = {"not_applied": len(lost), "first": first}
    before = updates[updates["update"] < first]
    if not len(before):
        what = f"{where} update {first}, before anything was learned: the data are not finite{kept}"
        return Finding(
            what,
            Change(f"{check_env(view.config)}: it finds rewards and observations that are not finite"),
            numbers,
        )
    return Finding(
        f"{where} update {first}{kept}", lower_rate(view.config, "parameters grow less fast"), numbers
    )


def _worst_quarter(view: View, column: str) -> tuple[int, float] | None:
    """Which quarter has the largest median, and that; None where the algorithm has no such column."""
    quarters = view.quarters(column, FEWEST_UPDATES)
    if quarters is None or not np.isfinite(quarters).any():
        return None
    worst = int(np.nanargmax(quarters))
    return worst, float(quarters[worst])


def _part(values: Any, quarter: int) -> Values:
    return np.array_split(values, QUARTERS)[quarter]
