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
def find(nodes: Any, offsets: Any, prefixes: Any, slots: Any) -> None:
    """The first leaf up to which more than the prefix adds up; never one of 0, whatever is rounded on the way."""
    for i in range(prefixes.size):
        rest = prefixes[i]
        node = 0
        for level in range(offsets.size - 2, -1, -1):
            first = offsets[level] + node * FAN
            chosen = 0
            for child in range(FAN):
                value = nodes[first + child]
                if value > 0:
                    chosen = child
                    if rest < value:
                        break
                    rest -= value
            else:
                rest += nodes[first + chosen]  # beyond all of them: the last that is not empty
            node = node * FAN + chosen
        slots[i] = node
