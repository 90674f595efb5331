"""Loops of the sum tree, compiled. Imports numba: a second, so import it late."""

from __future__ import annotations

from typing import Any

import numba

FAN = 8
"""Children of a node: eight float64 are one cache line."""

_compile = numba.njit(cache=True, nogil=True)


@_compile
def _recompute(nodes: Any, offsets: Any, level: int, parent: int) -> None:
    """A parent is what its children add up to, always in the same order: nothing drifts."""
    first = offsets[level] + parent * FAN
    c = nodes[first : first + FAN]
    nodes[offsets[level + 1] + parent] = ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]))


@_compile
def assign(nodes: Any, offsets: Any, slots: Any, values: Any) -> None:
    """Set leaves one after the other, so that the last one counts, then everything above them."""
    for i in range(slots.size):
        nodes[slots[i]] = values[i]
    divisor = 1
    for level in range(offsets.size - 1):
        divisor *= FAN
        before = -1
        for i in range(slots.size):
            parent = slots[i] // divisor
            if parent != before:  # neighbors share it
                _recompute(nodes, offsets, level, parent)
                before = parent


@_compile
def rebuild(nodes: Any, offsets: Any) -> None:
    """Everything above the leaves."""
    for level in range(offsets.size - 1):
        above = offsets[level + 2] if level + 2 < offsets.size else nodes.size
        used = min(above - offsets[level + 1], (offsets[level + 1] - offsets[level]) // FAN)
        for parent in range(used):
            _recompute(nodes, offsets, level, parent)


@_compile
def _last_filled(nodes: Any, first: int) -> int:
    for child in range(FAN - 1, 0, -1):
        if nodes[first + child] > 0:
            return child
    return 0


@_compile
def find(nodes: Any, offsets: Any, prefixes: Any, slots: Any) -> None:
    """The first leaf up to which more than the prefix adds up; never one of 0, whatever is rounded on the way.

    Which child it is cannot be foreseen, so all are added up, without a branch (a loop would be three times as slow),
    and level by level for all prefixes, so that these go side by side. Changes prefixes.
    """
    slots[:] = 0
    for level in range(offsets.size - 2, -1, -1):
        for i in range(prefixes.size):
            rest = prefixes[i]
            first = offsets[level] + slots[i] * FAN
            c0 = nodes[first]
            c1 = c0 + nodes[first + 1]
            c2 = c1 + nodes[first + 2]
            c3 = c2 + nodes[first + 3]
            c4 = c3 + nodes[first + 4]
            c5 = c4 + nodes[first + 5]
            c6 = c5 + nodes[first + 6]
            c7 = c6 + nodes[first + 7]
            child = (rest >= c0) + (rest >= c1) + (rest >= c2) + (rest >= c3)
            child += (rest >= c4) + (rest >= c5) + (rest >= c6)
            before = c0 if rest >= c0 else 0.0
            before = c1 if rest >= c1 else before
            before = c2 if rest >= c2 else before
            before = c3 if rest >= c3 else before
            before = c4 if rest >= c4 else before
            before = c5 if rest >= c5 else before
            before = c6 if rest >= c6 else before
            if rest >= c7:
                child = _last_filled(nodes, first)
                before = rest - nodes[first + child]  # what is left is all of it
            prefixes[i] = rest - before
            slots[i] = slots[i] * FAN + child
