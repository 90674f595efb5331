"""The single checks of an environment, each on recordings of what it did."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hpcrl.data.specs import ArraySpec, EnvSpec
from hpcrl.testing.recording import Recording, same

STEP_DTYPES = {
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
    "valid": "bool",
    "episode_return": "float64",
    "episode_length": "int64",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with an environment, or worth knowing."""

    check: str
    """Name of the check."""
    message: str
    """What was seen and what is expected."""
    is_error: bool = True
    """False: a note that does not fail the suite."""


def check_arrays(run: Recording) -> Iterator[Finding]:
    """Check shapes and dtypes of everything returned, against the spec."""
    spec, num_envs = run.spec, len(run.first_obs)
    if spec.observation.dtype not in ("float32", "uint8"):
        yield Finding("arrays", f"spec.observation.dtype is {spec.observation.dtype}; use float32 or uint8")
    yield from _check_spec(spec)
    want = {"obs": ((num_envs, *spec.observation.shape), spec.observation.dtype)}
    want |= {name: ((num_envs,), dtype) for name, dtype in STEP_DTYPES.items()}
    if (run.first_obs.shape, str(run.first_obs.dtype)) != want["obs"]:
        yield _misshaped("reset() obs", (run.first_obs.shape, str(run.first_obs.dtype)), want["obs"])
    for name, expected in want.items():
        for step in run.steps:
            array = getattr(step, name)
            if (array.shape, str(array.dtype)) != expected:
                yield _misshaped(name, (array.shape, str(array.dtype)), expected)
                break


def _check_spec(spec: EnvSpec) -> Iterator[Finding]:
    action, masked = spec.action, spec.masked
    if action.size < 1:
        yield Finding("arrays", f"spec.action.size is {action.size}; use at least 1")
    if action.kind == "multi_discrete" and (len(action.choices) != action.size or min(action.choices) < 1):
        yield Finding(
            "arrays",
            f"spec.action.choices is {action.choices}; use {action.size} numbers of choices, one per part",
        )
    if masked is not None:
        expected = ArraySpec(shape=(math.prod(masked.shape) + spec.mask_size,), dtype=masked.dtype)
        if not spec.mask_size or replace(spec.observation, parts=()) != expected:
            yield Finding(
                "arrays",
                f"spec.observation is {spec.observation.dtype}{list(spec.observation.shape)}; with spec.masked it must "
                f"be {expected.dtype}{list(expected.shape)}: what the network sees, then one entry per choice",
            )


def _misshaped(
    name: str, seen: tuple[tuple[int, ...], str], expected: tuple[tuple[int, ...], str]
) -> Finding:
    return Finding(
        "arrays", f"{name} is {seen[1]}{list(seen[0])}; the spec says {expected[1]}{list(expected[0])}"
    )


def check_finite(run: Recording) -> Iterator[Finding]:
    """Check that observations and rewards hold neither NaN nor infinity."""
    for name, arrays in (("obs", [run.first_obs, run.stack("obs")]), ("reward", [run.stack("reward")])):
        bad = sum(int((~np.isfinite(array)).sum()) for array in arrays)
        if bad:
            yield Finding("finite", f"{name} holds {bad} NaN or infinite numbers")


def check_mask(run: Recording) -> Iterator[Finding]:
    """Check that action masks hold zeros and ones; `record` has seen that they allow something."""
    if not run.spec.mask_size:
        return
    mask = np.concatenate([run.first_obs[None], run.stack("obs")])[..., -run.spec.mask_size :]
    if not np.isin(mask, (0, 1)).all():
        yield Finding("mask", f"the action mask holds {mask.min()} to {mask.max()}; use 0 and 1")


def check_flags(run: Recording) -> Iterator[Finding]:
    """Check that no end is terminated and truncated at once."""
    both = int((run.stack("terminated") & run.stack("truncated")).sum())
    if both:
        yield Finding("flags", f"{both} ends are terminated and truncated at once; a terminal state wins")


def check_valid(run: Recording) -> Iterator[Finding]:
    """Check that exactly the env_steps after an end are not valid."""
    valid = run.stack("valid")
    expected = np.ones_like(valid)
    expected[1:] = ~run.ended[:-1]
    missing, extra = int((valid & ~expected).sum()), int((~valid & expected).sum())
    if missing:
        yield Finding("valid", f"{missing} env_steps right after an end are valid; they must be reset steps")
    if extra:
        yield Finding("valid", f"{extra} env_steps are not valid although no end came right before them")


def check_reset_steps(run: Recording) -> Iterator[Finding]:
    """Check that reset steps have reward 0 and no flags."""
    invalid = ~run.stack("valid")
    paid = int((run.stack("reward")[invalid] != 0).sum())
    if paid:
        yield Finding("reset step", f"{paid} reset steps pay a reward; their action was ignored: use 0")
    if (run.ended & invalid).any():
        yield Finding(
            "reset step", f"{int((run.ended & invalid).sum())} reset steps are terminated or truncated"
        )


def check_accounting(run: Recording) -> Iterator[Finding]:
    """Check episode_return and episode_length against the rewards themselves."""
    reward, valid, ended = run.stack("reward").astype(np.float64), run.stack("valid"), run.ended
    returns, lengths = run.stack("episode_return"), run.stack("episode_length")
    total, count = np.zeros(reward.shape[1]), np.zeros(reward.shape[1], np.int64)
    for t in range(len(reward)):
        total += reward[t]
        count += valid[t]
        over = lengths[t] > 0
        if (over & ~ended[t]).any():
            yield Finding("accounting", "episode_length > 0 on an env_step that ends no episode")
            return
        if (lengths[t][over] != count[over]).any():
            yield Finding(
                "accounting", f"episode_length is {lengths[t][over]} after {count[over]} valid env_steps"
            )
            return
        if not np.allclose(returns[t][over], total[over], rtol=1e-4, atol=1e-3):
            yield Finding(
                "accounting",
                f"episode_return is {returns[t][over]} where the rewards sum to {total[over]}; use the "
                "raw, undiscounted return of the full episode",
            )
            return
        total[over], count[over] = 0, 0
    if ended.any() and not (lengths > 0).any():
        yield Finding("accounting", "episodes end, but episode_length is never above 0")


def check_last_observation(run: Recording) -> Iterator[Finding]:
    """Check that the observation at an end is neither the next episode's first nor the one before it."""
    obs, before, ended, valid = run.stack("obs"), run.obs_before(), run.ended, run.stack("valid")
    flat, flat_before = (array.reshape(*ended.shape, -1) for array in (obs, before))
    moved = (flat != flat_before).any(axis=2)
    inside = moved[valid & ~ended]
    if inside.size == 0 or inside.mean() < 0.9:
        return  # observations that hardly ever change cannot tell
    ends = np.argwhere(ended[:-1])
    if len(ends) < 2:
        return
    stale = sum(not moved[t, row] for t, row in ends)
    if stale == len(ends):
        yield Finding(
            "last observation", "at every end obs repeats the observation before it; the last one is lost"
        )
    firsts = {run.first_obs[row].tobytes() for row in range(ended.shape[1])}
    firsts |= {obs[t + 1, row].tobytes() for t, row in ends}
    early = sum(obs[t, row].tobytes() in firsts for t, row in ends)
    if early == len(ends):
        yield Finding(
            "last observation",
            "at every end obs is a first observation of an episode; without the last one no value can be "
            "bootstrapped at a time limit",
        )


def check_time_limit(run: Recording) -> Iterator[Finding]:
    """Check that running into max_episode_steps is truncation, and that nothing runs beyond it."""
    limit = run.spec.max_episode_steps
    if limit is None:
        return
    lengths = run.stack("episode_length")
    if lengths.max(initial=0) > limit:
        yield Finding("time limit", f"an episode has {lengths.max()} env_steps; max_episode_steps is {limit}")
    at_limit = lengths == limit
    if at_limit.sum() >= 2 and not run.stack("truncated")[at_limit].any():
        yield Finding(
            "time limit",
            f"all episodes of max_episode_steps={limit} are terminated; a time limit is truncation",
        )


def check_ownership(run: Recording, spoiled: Recording) -> Iterator[Finding]:
    """Check that arrays live until the next recv, and that send keeps no hold of the caller's actions."""
    if run.changed_by_send:
        names = ", ".join(sorted(run.changed_by_send))
        yield Finding(
            "ownership", f"send() overwrites {names} of the last Step; they belong to the caller till recv()"
        )
    rows = range(len(run.first_obs))
    if not all(same(run.row(row), spoiled.row(row)) for row in rows):
        yield Finding(
            "ownership", "the caller overwrote its action array after send() and the env_step changed"
        )


def check_seeding(run: Recording, again: Recording, parts: list[Recording]) -> Iterator[Finding]:
    """Check that environment i depends on (seed, i) alone.

    Args:
        run: all environments at once.
        again: the same once more.
        parts: the same environments and actions, divided into several groups.
    """
    rows = range(len(run.first_obs))
    if not all(same(run.row(row), again.row(row)) for row in rows):
        yield Finding("seeding", "two runs with the same seeds and actions differ")
        return
    divided = [part.row(row) for part in parts for row in range(len(part.first_obs))]
    if not all(same(run.row(row), divided[row]) for row in rows):
        yield Finding("seeding", "an environment behaves differently when it is divided into other groups")


def check_distinct(run: Recording, other_seed: Recording) -> Iterator[Finding]:
    """Check that every environment plays episodes of its own; in both runs all rows take the same actions."""
    rows = range(len(run.first_obs))
    if all(same(run.row(row), other_seed.row(row)) for row in rows):
        yield Finding("seeding", "the seeds change nothing: a deterministic environment?", is_error=False)
        return
    if len(rows) > 1 and all(same(run.row(0), run.row(row)) for row in rows):
        yield Finding("seeding", "all environments of a group play the same episode; seed each on its own")
        return
    starts = [_starts(run, row) for row in rows]
    if len(set().union(*starts)) > 1 and all(len(start) == 1 for start in starts):
        yield Finding(
            "seeding", "every episode of an environment starts like its first; a reset must not reseed"
        )


def _starts(run: Recording, row: int) -> set[bytes]:
    """Distinct first observations of one environment's episodes; two dummies if fewer than three began."""
    resets = np.flatnonzero(~run.stack("valid")[:, row])
    if len(resets) < 2:
        return {b"few", b"episodes"}
    return {run.first_obs[row].tobytes()} | {run.steps[t].obs[row].tobytes() for t in resets}
