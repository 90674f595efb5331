"""Loops over env_steps of the replay memory, compiled. Imports numba: a second, so import it late."""

from __future__ import annotations

from typing import Any

import numba

from hpcrl.data.replay_frames import ZEROS
from hpcrl.data.replay_rings import END, GAP, TERMINATED, TRUNCATED, VALID

_compile = numba.njit(cache=True, nogil=True)


@_compile
def _equal(a: Any, b: Any) -> bool:
    """Of two rows of words, looked at in pieces: most differ early or not at all."""
    for start in range(0, a.size, 64):
        different = a[start] ^ b[start]
        for word in range(start + 1, min(start + 64, a.size)):
            different |= a[word] ^ b[word]
        if different:
            return False
    return True


@_compile
def equal_rows(rows: Any, which: Any, others: Any, out: Any) -> None:
    """Whether rows[which[i]] [words] is others[i]."""
    for i in range(which.size):
        out[i] = _equal(rows[which[i]], others[i])


@_compile
def goes_on(stacks: Any, out: Any) -> None:
    """Whether each of the stacks [U+1, B, k, words] but the first is the one before, moved by a frame; [U, B]."""
    for column in range(stacks.shape[1]):
        for step in range(stacks.shape[0] - 1):
            same = True
            for frame in range(stacks.shape[2] - 1):
                same = same and _equal(stacks[step + 1, column, frame], stacks[step, column, frame + 1])
            out[step, column] = same


@_compile
def read_stacks(frames: Any, depth: Any, origin: Any, slots: Any, rows: int, out: Any) -> None:
    """Copy the stacks of slots to `out` [count, k, words], but the older frames of odd ones; as StackedFrames.

    frames [rows + 1, words]. A loop, because memory moved by the C library in pieces of odd length takes 1.6 x as long.
    """
    k = out.shape[1]
    for i in range(slots.size):
        slot = slots[i]
        place = slot % rows
        for frame in range(k):
            # it lies k - 1 - frame rows before, but not before the row in which its chain began
            back = min(k - 1 - frame, int(depth[slot]))
            source = slot - back + (rows if back > place else 0)
            if k - 1 - frame > back and origin[slot] == ZEROS:
                source = len(frames) - 1
            for word in range(frames.shape[1]):
                out[i, frame, word] = frames[source, word]


@_compile
def generations(slots: Any, rows: int, written: Any, out: Any) -> None:
    """Of the env_steps that lie in these slots now."""
    for i in range(slots.size):
        newest = written[slots[i] // rows] - 1
        out[i] = newest - (newest - slots[i] % rows) % rows


@_compile
def mark(columns: Any, terminated: Any, truncated: Any, valid: Any, rings: Any) -> None:
    """Flags of a block that comes behind the env_steps of the columns, and what follows from them."""
    rows, flags, written, last_end, inserted = rings
    for b in range(columns.size):
        column = columns[b]
        generation = written[column]
        first = column * rows + generation % rows
        for t in range(valid.shape[0]):
            flag = TERMINATED * terminated[t, b] + TRUNCATED * truncated[t, b] + VALID * valid[t, b]
            flags[first + t] = flag
            if flag & END:
                last_end[column] = generation + t
            inserted[column] += valid[t, b]
        written[column] = generation + valid.shape[0]


@_compile
def fill_gap(columns: Any, block: int, rings: Any) -> None:
    """As `mark`, of a block that stands for lost env_steps; the newest one before it counts as truncated."""
    rows, flags, written, last_end, _ = rings
    for column in columns:
        generation = written[column]
        newest = column * rows + (generation - 1) % rows
        if flags[newest] == VALID:
            flags[newest] |= TRUNCATED
            last_end[column] = generation - 1
        first = column * rows + generation % rows
        flags[first : first + block] = GAP
        written[column] = generation + block


@_compile
def leaving(columns: Any, live: int, block: int, rows: int, written: Any, flags: Any, slots: Any) -> Any:
    """Slots of the env_steps that are too old once a block has come; how many those are, and how many are valid."""
    count = valid = 0
    for column in columns:
        for generation in range(max(written[column] - live, 0), written[column] - live + block):
            slots[count] = column * rows + generation % rows
            valid += (flags[slots[count]] & VALID) != 0
            count += 1
    return count, valid


@_compile
def complete(column: int, length: int, steps_ahead: int, written: Any, last_end: Any) -> int:
    """Up to which generation of a column everything that an entry needs is there."""
    if length:
        return int(written[column] - length + 1)
    return int(max(written[column] - steps_ahead, last_end[column]) + 1)


@_compile
def may_begin(
    slot: int, generation: int, rows: int, flags: Any, block: int, length: int, at_resets: bool
) -> bool:
    """Whether an entry begins at an env_step that is complete."""
    flag = flags[slot]
    if not length:
        return bool(flag & VALID)
    begins = generation % block == 0 or (at_resets and flag == 0)
    if flag & GAP or not begins:
        return False
    after = slot // rows * rows + (slot + 1) % rows
    # the first env_step of an episode comes after the reset step
    return bool(flag & VALID) or (length > 1 and bool(flags[after] & VALID))


@_compile
def enter(columns: Any, limits: Any, rings: Any, at_resets: bool, entered: Any, slots: Any) -> int:
    """Slots of what has become an entry in these columns; how many."""
    live, block, length, steps_ahead = limits
    rows, flags, written, last_end, _ = rings
    count = 0
    for column in columns:
        until = complete(column, length, steps_ahead, written, last_end)
        for generation in range(max(entered[column], written[column] - live), until):
            slot = column * rows + generation % rows
            if may_begin(slot, generation, rows, flags, block, length, at_resets):
                slots[count] = slot
                count += 1
        entered[column] = max(entered[column], until)
    return count


@_compile
def begin(
    slots: Any, generations: Any, until: int, limits: Any, rings: Any, at_resets: bool, out: Any
) -> None:
    """Which of one column's env_steps an entry begins at that is complete; bool to `out`."""
    _, block, length, _ = limits
    for i in range(slots.size):
        out[i] = generations[i] < until and may_begin(
            slots[i], generations[i], rings[0], rings[1], block, length, at_resets
        )


@_compile
def look_ahead(
    slots: Any,
    rings: Any,
    rewards: Any,
    scaling: Any,
    discounts: Any,
    reward: Any,
    discount: Any,
    after: Any,
    newest: Any,
) -> int:
    """n-step returns: sum of discounts[k] * reward of up to n env_steps, until an episode ends.

    rewards: of all slots, to be clipped to scaling[1] and multiplied by scaling[0]. discounts: gamma^0 to gamma^n.
    Written for each slot: reward, discount (gamma^m, 0 where it terminated) and the slot after those m env_steps. The
    places of those for whom that is not there yet are written to `newest`; returns how many.
    """
    rows, flags, written, _, _ = rings
    scale, clip = scaling
    n = discounts.size - 1
    count = 0
    for i in range(slots.size):
        column = slots[i] // rows
        start = column * rows
        place = slots[i] - start
        behind = (written[column] - 1 - place) % rows  # env_steps after this one
        value, m, end = 0.0, 0, 0
        while m < n and not end:
            row = start + place
            value += discounts[m] * scale * min(max(rewards[row], -clip), clip)
            end = flags[row] & END
            m += 1
            place = place + 1 if place + 1 < rows else 0
        reward[i] = value
        discount[i] = 0.0 if end & TERMINATED else discounts[m]
        after[i] = start + place
        if m > behind:
            newest[count] = i
            count += 1
    return count


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
