"""Gradients that are not finite: none is applied, some batches are kept to be looked at, many end the run."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrl.comm.ranks import Placement
from hpcrl.config import ExitCode
from hpcrl.data.trajectory import Trajectory
from hpcrl.roles.batch import Fields, origins_of
from hpcrl.roles.learner_state import Counters
from hpcrl.roles.session import Session, record_event
from hpcrl.storage.dump import dump_arrays

MOST_DUMPS = 10
"""Batches that a learner sets aside in an attempt; of later ones there is an event only."""


class Guard:
    """One learner's count of them. Local; all learners come to the same end."""

    def __init__(self, session: Session, placement: Placement, counters: Counters) -> None:
        self._session, self._placement, self._counters = session, placement, counters
        self._dumps = 0

    def look(self, applied: bool, update: int, fields: Fields, trajectories: Sequence[Trajectory]) -> None:
        """`update` was made of these, or refused.

        The run ends after algorithm.max_nonfinite_updates in a row; or in a row of one actor, where every update has
        but one and one learner, however good the others' are meanwhile.
        """
        counters = self._counters
        of = counters.nonfinite_of
        if applied:
            counters.nonfinite = 0
            if of and (actor := self._only_actor(trajectories)) is not None:
                of.pop(actor, None)
            return
        counters.nonfinite += 1
        self._set_aside(update, fields)
        most = self._session.config.algorithm.max_nonfinite_updates
        if (actor := self._only_actor(trajectories)) is not None:
            of[actor] = of.get(actor, 0) + 1
        if counters.nonfinite >= most:
            text = f"gradients were not finite in {most} updates in a row"
        elif actor is not None and of[actor] >= most:
            text = f"gradients were not finite in {most} updates in a row of those from actor {actor}"
        else:
            return
        self._session.fail(ExitCode.LEARNING_FAILED, f"{text} (algorithm.max_nonfinite_updates)")

    def _only_actor(self, trajectories: Sequence[Trajectory]) -> int | None:
        """role_rank of the one actor that an update is of, where all learners know it."""
        if len(self._session.world.plan.ranks("learner")) != 1:
            return None
        actors = set(origins_of(trajectories)["actor"].tolist())
        return actors.pop() if len(actors) == 1 else None

    def _set_aside(self, update: int, fields: Fields) -> None:
        """Save this learner's share of the batch, and note it."""
        name = f"nonfinite-update{update:06d}-learner{self._placement.role_rank}.h5"
        kept = "its batch is not kept: others are"
        if self._dumps < MOST_DUMPS:
            self._dumps += 1
            try:
                dump_arrays(self._session.run_dir / "logs" / name, fields)
                kept = f"batch saved as logs/{name}"
            except OSError as error:
                kept = f"its batch could not be saved: {error}"
        text = f"the gradient of update {update} was not finite; not applied, {kept}"
        record_event(self._session, self._placement, "nonfinite_update", text)
