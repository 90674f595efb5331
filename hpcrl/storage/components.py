"""What a checkpoint consists of: every piece of a run's state has a name and a version of its layout here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Component:
    """One piece of state, as it lies in the parts of a checkpoint."""

    version: int
    """Raised when the values get another meaning; a set with another version is refused."""
    meaning: str


COMPONENTS: dict[str, Component] = {
    "algorithm": Component(1, "what `Algorithm.state` gives: parameters, optimizer (learner or worker 0)"),
    "counters": Component(1, "updates, env_steps, nonfinite updates in a row (learner or worker 0)"),
    "reducer": Component(1, "what compression kept for the next gradient (each learner or worker)"),
    "actions": Component(1, "random stream of the actions (each actor or worker, by role_rank)"),
    "envs": Component(1, "environments by global index: observation and, if it can be saved, state"),
    "queue": Component(1, "trajectories not trained on yet (each replay rank; learners: batches ahead)"),
}
"""Every component, by name. Which rank writes it stands in its meaning."""


def generator_state(rng: np.random.Generator) -> dict[str, int | str]:
    """A numpy generator's state as plain values, for `load_generator_state`. Local."""
    state: Any = rng.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError(f"the state of a {state['bit_generator']} generator cannot be saved; use PCG64")
    return {
        "bit_generator": "PCG64",
        "state": int(state["state"]["state"]),
        "inc": int(state["state"]["inc"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def load_generator_state(rng: np.random.Generator, values: dict[str, Any]) -> None:
    """Continue a saved stream. Raises ValueError for one of another kind. Local."""
    if values.get("bit_generator") != "PCG64":
        raise ValueError(f"this random stream is of kind {values.get('bit_generator')!r}, not PCG64")
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": values["state"], "inc": values["inc"]},
        "has_uint32": values["has_uint32"],
        "uinteger": values["uinteger"],
    }
