"""Environments and action streams in a checkpoint: by global index, so that other ranks may go on with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcrl.algorithms import State
from hpcrl.comm.ranks import Placement, share
from hpcrl.data.generators import load_generator_rows
from hpcrl.envs import Obs, Resumable, VectorEnv
from hpcrl.roles.cut import part_name
from hpcrl.roles.session import Session, record_event
from hpcrl.storage.checkpoint import Saved
from hpcrl.storage.parts import Given, Values

Rows = dict[str, npt.NDArray[Any]]


def env_state(env: VectorEnv) -> Rows:
    """Rows of what the environments can save of themselves; none where they cannot. Local."""
    return (env.state() if isinstance(env, Resumable) else None) or {}


class EnvRows(NamedTuple):
    """Some environments between two env_steps: a row of every array for each."""

    obs: Obs
    state: Rows
    """What the environments saved of themselves; empty where they cannot."""
    policy_state: State | None = None
    """What the policy remembers of each; None for one that remembers nothing."""
    discounted_return: npt.NDArray[np.float32] | None = None
    """Of the running episodes; None where nothing is normalized by returns."""


def env_values(first: int, groups: Sequence[EnvRows]) -> Given:
    """A component `envs` from consecutive groups of environments, the first of which is `first`. Pure."""
    values: dict[str, Any] = {"first": first, "obs": np.concatenate([group.obs for group in groups])}
    for name in ("policy_state", "discounted_return"):
        arrays = [array for group in groups if (array := getattr(group, name)) is not None]
        if len(arrays) == len(groups):
            values[name] = np.concatenate(arrays)
    for name in groups[0].state if all(group.state for group in groups) else ():
        values[f"state/{name}"] = _stack([group.state[name] for group in groups])
    return values


def saved_envs(saved: Saved, role: str, num_envs: int, indices: range) -> EnvRows | None:
    """The environments with these global indices; None where no state of them was saved. Local."""
    found: list[Rows] = []

    def take(values: Values) -> None:
        first = int(values.pop("first"))
        rows = {name: np.asarray(value) for name, value in values.items()}
        last = first + len(rows["obs"])
        wanted = slice(max(indices.start, first) - first, min(indices.stop, last) - first)
        found.append({name: array[wanted] for name, array in rows.items()})

    for part in saved.of_role(role):  # of an actor that had died there is none
        theirs = share(num_envs, saved.meta["acting_ranks"], int(part.rpartition("-")[2]))
        if theirs.start < indices.stop and indices.start < theirs.stop:
            saved.restore(part, "envs", take)
    names = found[0].keys() if found else set()
    if any(one.keys() != names for one in found):
        return None
    whole = {name: _stack([one[name] for one in found]) for name in names}
    state = {name.removeprefix("state/"): array for name, array in whole.items() if "/" in name}
    if not state or len(whole["obs"]) != len(indices):
        return None
    return EnvRows(whole["obs"], state, whole.get("policy_state"), whole.get("discounted_return"))


def restart_seed(seed: int, update: int) -> int:
    """Seed of environments that begin anew when a run goes on from `update`: other episodes than the first time."""
    return int(np.random.SeedSequence([seed, update]).generate_state(1, np.uint64)[0] >> 1)


def restore_actions(session: Session, placement: Placement, rng: np.random.Generator) -> None:
    """Continue the random stream of this role_rank; one that had none has a new one already, which is noted."""
    saved = session.cuts.saved
    if saved is None:
        return
    part = part_name(placement)

    def go_on(values: Values) -> None:
        load_generator_rows([rng], np.asarray(values["state"]))

    if part in saved.parts:
        saved.restore(part, "actions", go_on)
    else:
        text = f"actions of {part}: a stream of their own from the seed and update {saved.update}"
        record_event(session, placement, "stream_derived", text)


def _stack(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenate [B_i, ...]; rows of bytes [B_i, L_i], which are texts, are filled up with zeros to the longest."""
    if arrays[0].dtype == np.uint8 and arrays[0].ndim == 2:
        longest = max(array.shape[1] for array in arrays)
        arrays = [np.pad(array, ((0, 0), (0, longest - array.shape[1]))) for array in arrays]
    return np.concatenate(arrays)
