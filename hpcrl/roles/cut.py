"""Checkpoints of everything at one logical cut over all ranks.

A cut lies at an update boundary, where every learner knows it to be. From there a mark goes the way of the data: after
the last version the replay ranks get a mark, after the last grant the actors. Whoever has it writes a part: learners at
the update itself, a replay rank once everything it had granted has come, an actor once it has sent it off. Nobody waits
for anybody else's file; learner 0 hears of every part and completes the set while the run goes on. Not before the rows
of its updates are in the result file, too: what a run goes on from after a kill is there to be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from hpcrl.comm.control import DISK_REFUSES, Control
from hpcrl.comm.ranks import Placement
from hpcrl.comm.world import World
from hpcrl.config import ExitCode, RunConfig
from hpcrl.config.hops import Timed
from hpcrl.roles.completion import RETRY_S, Completion, mark_of
from hpcrl.storage import checkpoint
from hpcrl.storage.checkpoint import Saved
from hpcrl.storage.parts import Given
from hpcrl.storage.patience import Patience, reason

_log = logging.getLogger(__name__)

ROLES_WITH_ROWS = ("learner", "worker", "replay")
"""Who writes result rows by update: a checkpoint is complete once those before it are on disk, too."""
MARK = -1
"""Stands for a grant's number in the message that says: everything granted before belongs to a checkpoint."""


_NEAR_THE_END_S = 900.0
"""A signal with so much time left may mean the end of the allocation; before, a preemption."""


class Cuts:
    """One rank's part in checkpoints, and on learner 0 the root's: when one is due, and whether all of it is there."""

    def __init__(
        self, world: World, config: RunConfig, control: Control, run_dir: Any, saved: Saved | None
    ) -> None:
        """Local. `saved`: what this run goes on from."""
        self._world, self._config, self._control = world, config, control
        self._run_dir = run_dir
        self._aside = config.faults.has("atomic-rename")
        self.saved = saved
        self.first_update = 0 if saved is None else saved.update
        """Updates of the attempts before."""
        self._set = Completion(run_dir, config, self.first_update if saved is not None else -1)
        """On learner 0."""
        self._end_time: float | None = None
        self._began = self._start_s = 0.0
        self._decided = 0.0
        """Time of the decision for the next cut."""
        learners = world.plan.ranks("learner") or world.plan.ranks("worker")
        self.is_root = world.rank == learners[0]
        self.score: Callable[[], float | None] = lambda: None
        """On the rank that writes the results: the recent training return."""
        self.mark_rows: Callable[[int], None] = self._control.send_rows
        """On ranks of ROLES_WITH_ROWS: tell the rank that writes the results that it has every row before this mark."""
        self.marks: Sequence[int] = ()
        """On ranks of ROLES_WITH_ROWS: the marks that are still to leave this rank."""
        self.timed: Timed = nullcontext
        """Around what is a hop of its own."""
        self._parts = [part_name(placement) for placement in world.plan.placements]
        """What makes a set complete: the parts of the living."""
        if world.failures is not None:
            world.failures.on_death(self._lose)

    def stop_before(self, end_time: float | None, began: float) -> None:
        """Have the run stop before the allocation ends. Local. Seconds since the epoch; `began`: this attempt did."""
        self._end_time, self._began = end_time, began
        if end_time is not None and self.is_root:
            margin_s, left_s = self._config.checkpoint.margin_s, end_time - datetime.now(UTC).timestamp()
            if left_s <= margin_s:
                _log.warning(
                    "the allocation ends in %.0f s, which is within checkpoint.margin_s=%g: the run stops at once",
                    left_s,
                    margin_s,
                )
            self._control.time_is_up = lambda: (
                datetime.now(UTC).timestamp() + margin_s + self._set.longest_s >= end_time
            )

    def started(self) -> None:
        """This rank's roles have come to the end of their start. Local."""
        self._start_s = datetime.now(UTC).timestamp() - self._began

    def futility(self, update: int) -> str:
        """Why another attempt like this one would come to nothing, where it is stopped at `update`; empty else.

        Local, on learner 0. So it is where an attempt went on from a checkpoint and its time is over before an update,
        most of it spent on the start.
        """
        if self._end_time is None or self.saved is None or update > self.first_update:
            return ""
        now = datetime.now(UTC).timestamp()
        start_s = self._start_s or now - self._began  # the order to stop may come before the start is over
        left_s, worked_s = self._end_time - now, now - self._began - start_s
        # one that had more time than its start took may have collected trajectories: of slow environments a batch
        # may take attempts
        if left_s > _NEAR_THE_END_S or worked_s > start_s or not self._control.stop_is_of_the_clock:
            return ""
        return (
            f"the time limit is too short: no update since that of the checkpoint, {self.first_update}, in an attempt "
            f"that began {self._end_time - self._began:.0f} s before the end of the allocation; its start took "
            f"{start_s:.0f} s, and {left_s:.0f} s were left when it was stopped by {self._control.stop_cause} "
            f"(checkpoint.margin_s={self._config.checkpoint.margin_s:g}, or the lead of Slurm's signal). Ask for more "
            "time (--time), or shorten the margin or the lead"
        )

    def due(self, update: int) -> bool:
        """Whether the root wants a cut at `update`. Local, on learner 0."""
        return self._set.due(update)

    def decided(self) -> None:
        """On every learner: a cut is agreed on. The time a set takes counts from here."""
        self._decided = time.perf_counter()

    def begin(self, update: int, env_steps: int, *, final: bool = False) -> None:
        """On every learner: all have agreed on a cut here. A set that is not complete yet is given up.

        `final`, on the root alone: the set that is written when everything is drained.
        """
        if self.is_root:
            meta = {
                "update": update,
                "env_steps": env_steps,
                "attempt": self._world.attempt,
                "seed": self._config.seed,
                "ranks": self._config.ranks.to_dict(),
                "acting_ranks": self._config.num_acting_ranks,
            }
            begun, self._decided = self._decided or time.perf_counter(), 0.0
            self._set.begin(update, meta, begun, final=final)

    def write(self, update: int, placement: Placement, components: Mapping[str, Given]) -> None:
        """Write this role's part of the set of `update` and tell the root. Local, then point-to-point.

        Where the disk refuses it, the root is told that, and the run goes on.
        """
        self._mark(update, placement, final=False)
        self._write(update, placement, components, final=False)

    def write_last(
        self, update: int, placement: Placement, components: Mapping[str, Given]
    ) -> Iterator[bool]:
        """`write` for the set that is written when all is drained; tries again for up to storage.patience_s."""
        self._mark(update, placement, final=True)
        patience = Patience(self._config.storage.patience_s)
        while not self._write(update, placement, components, final=True):
            patience.bear()
            if patience.over:
                return
            yield True
            again = time.perf_counter() + RETRY_S
            while time.perf_counter() < again:
                yield False

    def _mark(self, update: int, placement: Placement, *, final: bool) -> None:
        if placement.role in ROLES_WITH_ROWS:
            self.mark_rows(mark_of(update, final))

    def _write(
        self, update: int, placement: Placement, components: Mapping[str, Given], *, final: bool
    ) -> bool:
        """Whether the disk takes it; the root hears of it in any case."""
        part = part_name(placement)
        found: bytes | int
        try:
            with self.timed("checkpoint.write"):
                digest = checkpoint.write_part(self._run_dir, update, part, components, aside=self._aside)
            found = bytes.fromhex(digest)
        except OSError as error:
            found = error.errno or 0
            _log.warning("part %s of checkpoint %d cannot be written: %s", part, update, reason(error))
        if self._world.rank == self._world.plan.writer:
            if self.is_root:
                self._control.score = self.score()
            else:
                self._control.send_score(self.score())
        if self.is_root:
            self._set.note(part, update, found, final=final)
        elif isinstance(found, int):
            self._control.send_refusal(update, found, final=final)
        else:
            self._control.send_part(update, found, final=final)
        return isinstance(found, bytes)

    def poll(self) -> list[tuple[str, str]]:
        """On learner 0: complete the set once every part is there. Kind and text of what is to become an event.

        Where the disk has refused for too long the run is asked to stop.
        """
        if not self._set.pending:
            return []
        for rank, update, final, found in self._control.take_parts():
            (placement,) = self._world.plan.of_rank(rank)
            self._set.note(part_name(placement), update, found, final=final)
        self._set.settle(self._parts, self._control.rows_on_disk, self._control.score)
        if self._set.patience.over and not self._set.pending:
            self._control.request_stop(DISK_REFUSES)
        return self._set.take_told()

    def bad_end(self, update: int) -> tuple[ExitCode | None, str]:
        """Exit code and cause of a stop at `update` that another attempt would not mend. On learner 0."""
        patience = self._set.patience
        if patience.over:
            return ExitCode.RANK_FAILED, (
                f"no checkpoint could be written for {patience.lasted_s:.1f} s (storage.patience_s="
                f"{patience.limit_s:g}): {self._set.said}. Those before are whole; see to the disk, then resume the run"
            )
        futile = self.futility(update)
        return (ExitCode.BAD_CONFIGURATION if futile else None), futile

    def last_is_lost(self) -> bool:
        """Whether the set at the end is given up, as the disk has refused it for too long; not twice. On learner 0."""
        lost = self._set.pending and self._set.patience.over
        if lost:
            self._set.forget()
        return lost

    @property
    def refused(self) -> bool:
        """The disk refuses checkpoints, not yet for too long. On learner 0."""
        return self._set.patience.since is not None

    @property
    def last(self) -> int:
        """Update of the last cut that was not given up; -1: none. On learner 0."""
        return self._set.last

    @property
    def pending(self) -> bool:
        """A set is not complete yet. On learner 0."""
        return self._set.pending

    def missing(self) -> str:
        """Parts that are not there yet, for a report. On learner 0."""
        return ", ".join(self._set.missing(self._parts, self._control.rows_on_disk))

    def _lose(self, rank: int) -> None:
        """Whatever role has died there writes no more parts; one it has written still counts."""
        for placement in self._world.plan.of_rank(rank):
            self._parts.remove(part_name(placement))


def part_name(placement: Placement) -> str:
    """Name of a role's part. Pure."""
    return f"{placement.role}-{placement.role_rank}"
