"""Loops over sampled entries of the replay memory, compiled. Imports numba: a second, so import it late."""

from __future__ import annotations

from typing import Any

import numba

from hpcrl.data.replay_rings import END, GAP, TERMINATED

_compile = numba.njit(cache=True, nogil=True)


@_compile
def look_ahead(
    slots: Any,
    rows: int,
    flags: Any,
    rewards: Any,
    scaling: Any,
    discounts: Any,
    reward: Any,
    discount: Any,
    steps: Any,
) -> None:
    """n-step returns: sum of discounts[k] * reward of up to n env_steps, until an episode ends.

    rewards: of all slots, to be clipped to scaling[1] and multiplied by scaling[0]. discounts: gamma^0 to gamma^n.
    Written for each slot: reward, discount (gamma^m, 0 where it terminated) and steps m.
    """
    scale, clip = scaling
    n = discounts.size - 1
    for i in range(slots.size):
        start = slots[i] // rows * rows
        place = slots[i] - start
        value, m, end = 0.0, 0, 0
        while m < n and not end:
            row = start + place
            value += discounts[m] * scale * min(max(rewards[row], -clip), clip)
            end = flags[row] & END
            m += 1
            place = place + 1 if place + 1 < rows else 0
        reward[i] = value
        discount[i] = 0.0 if end & TERMINATED else discounts[m]
        steps[i] = m


@_compile
def sequence_flags(slots: Any, rows: int, flags: Any, cross_episodes: bool, out: Any) -> None:
    """Flags [L, count] of sequences, 0 for what does not count: behind a gap or, by mode, an episode's end."""
    for i in range(slots.size):
        start = slots[i] // rows * rows
        place = slots[i] - start
        cut = False
        for step in range(out.shape[0]):
            flag = flags[start + place]
            cut = cut or (flag & GAP) != 0
            out[step, i] = 0 if cut else flag
            cut = cut or (not cross_episodes and (flag & END) != 0)
            place = place + 1 if place + 1 < rows else 0
