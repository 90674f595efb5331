"""A learner's part of a checkpoint, and its return."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from hpcrl.algorithms import Algorithm
from hpcrl.comm.ranks import Placement
from hpcrl.comm.reduce import HierarchicalReducer
from hpcrl.roles.cut import part_name
from hpcrl.roles.session import Session, record_event
from hpcrl.storage.parts import Given, Values

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """What all learners agree on."""

    updates: int = 0
    env_steps: int = 0
    """Valid env_steps trained on."""
    nonfinite: int = 0
    """Updates in a row whose gradient was not finite."""
    evaluated: int = 0
    """env_steps up to which no evaluation is due any more; on learner 0."""
    nonfinite_of: dict[int, int] = field(default_factory=dict)
    """`nonfinite` by actor, of updates of one actor each."""

    def values(self) -> Given:
        """A component `counters`."""
        of = np.array(list(self.nonfinite_of.items()), np.int64).reshape(-1, 2)
        return {
            "updates": self.updates,
            "env_steps": self.env_steps,
            "nonfinite": self.nonfinite,
            "evaluated": self.evaluated,
            "nonfinite_of": of,
        }

    def load(self, values: Values) -> None:
        """Continue from `values`."""
        self.updates, self.env_steps = int(values["updates"]), int(values["env_steps"])
        self.nonfinite = int(values["nonfinite"])
        self.evaluated = int(values.get("evaluated", self.env_steps))  # not there in older checkpoints
        pairs = np.asarray(values.get("nonfinite_of", np.zeros((0, 2), np.int64)))  # not there before
        self.nonfinite_of = {int(actor): int(count) for actor, count in pairs}


def learner_components(
    algorithm: Algorithm, counters: Counters, reducer: HierarchicalReducer, *, root: bool
) -> Mapping[str, Given]:
    """What this learner saves; the root also what is equal on all. Local."""
    components: dict[str, Given] = {"reducer": reducer.state()}
    return (
        components | {"algorithm": algorithm.state(), "counters": counters.values()} if root else components
    )


def restore_learner(session: Session, placement: Placement, algorithm: Algorithm, counters: Counters) -> None:
    """Continue from learner 0's part of the checkpoint, if there is one. Local; algorithm on the CPU."""
    saved, first = session.cuts.saved, f"{placement.role}-0"

    def load(values: Values) -> None:
        algorithm.load_state({name: np.asarray(value) for name, value in values.items()})

    if saved is not None:
        saved.restore(first, "algorithm", load)
        saved.restore(first, "counters", counters.load)


def share_optimizer(algorithm: Algorithm, reducer: HierarchicalReducer, *, root: bool) -> None:
    """Let each learner of a node step its share of the parameters, where memory is shared. Collective over learners."""
    vectors = [vector.numpy() for vector in algorithm.vectors()]
    shared = reducer.share(vectors) if vectors else None
    if shared is not None:
        memories, own = shared
        algorithm.share([torch.from_numpy(one) for one in memories], own, reducer.wait_for_node)
    elif root:
        _log.warning(
            "reduction.shard_optimizer has no effect: %s; every learner steps all parameters",
            "learners share no memory" if vectors else "this algorithm has nothing to share",
        )


def restore_reducer(
    session: Session, placement: Placement, algorithm: Algorithm, reducer: HierarchicalReducer
) -> None:
    """Continue with what compression kept of the same learner, on as many; else that is lost, which is noted.

    Collective over the learners.
    """
    saved, role = session.cuts.saved, placement.role
    if saved is None or session.config.reduction.compression == "none":
        return
    reducer.open_gradient(algorithm.parameters.gradient_size, algorithm.parameters.vectors_only)

    def load(values: Values) -> None:
        reducer.load_state({name: np.asarray(value) for name, value in values.items()})

    try:
        if len(saved.of_role(role)) != len(session.world.plan.ranks(role)):
            raise ValueError("another number of learners")
        saved.restore(part_name(placement), "reducer", load)
    except ValueError as error:
        text = f"what compression kept for the next gradient is lost: {error}"
        record_event(session, placement, "residual_lost", text)
