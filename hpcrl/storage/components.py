"""What a checkpoint consists of: every piece of a run's state has a name and a version of its layout here."""

from __future__ import annotations

from dataclasses import dataclass


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
    "envs": Component(
        1,
        "environments by global index: observation, what the policy remembers and, if it can be saved, state",
    ),
    "queue": Component(
        1,
        "trajectories not trained on yet (each replay rank; learners: batches ahead; lag.injection: the worker)",
    ),
    "memory": Component(
        1,
        "replay memory by environment: env_steps, priorities, cursors, counts, random stream (each replay rank)",
    ),
    "limiter": Component(1, "what was inserted and sampled, and which side is ahead (each replay rank)"),
}
"""Every component, by name. Which rank writes it stands in its meaning."""
