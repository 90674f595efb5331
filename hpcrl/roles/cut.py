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
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hpcrl.comm.control import Control
from hpcrl.comm.ranks import Placement
from hpcrl.comm.world import World
from hpcrl.config import RunConfig
from hpcrl.config.hops import Timed
from hpcrl.storage import checkpoint
from hpcrl.storage.checkpoint import Saved
from hpcrl.storage.parts import Given

_log = logging.getLogger(__name__)

ROLES_WITH_ROWS = ("learner", "worker", "replay")
"""Who writes result rows by update: a checkpoint is complete once those before it are on disk, too."""
MARK = -1
"""Stands for a grant's number in the message that says: everything granted before belongs to a checkpoint."""


_NEAR_THE_END_S = 900.0
"""A signal with so much time left may mean the end of the allocation; before, a preemption."""


@dataclass(slots=True)
class _Pending:
    update: int
    final: bool
    meta: dict[str, Any]
    begun: float
    hashes: dict[str, str]


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
        self.last = self.first_update if saved is not None else -1
        """Update of the last cut."""
        self._last_time = time.perf_counter()
        self._pending: _Pending | None = None
        self._end_time: float | None = None
        self._began = self._start_s = 0.0
        self._decided = self._longest_s = 0.0
        """Time of the decision for the next cut; longest time from there to a complete set."""
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
                datetime.now(UTC).timestamp() + margin_s + self._longest_s >= end_time
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
        settings = self._config.checkpoint
        if self._pending is not None:
            return False
        if settings.every_updates is not None and update - max(self.last, 0) >= settings.every_updates:
            return True
        late = time.perf_counter() - self._last_time
        return settings.every_seconds is not None and late >= settings.every_seconds

    def decided(self) -> None:
        """On every learner: a cut is agreed on. The time a set takes counts from here."""
        self._decided = time.perf_counter()

    def begin(self, update: int, env_steps: int, *, final: bool = False) -> None:
        """On every learner: all have agreed on a cut here. A set that is not complete yet is given up.

        `final`, on the root alone: the set that is written when everything is drained.
        """
        self.last = update
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
            self._pending = _Pending(update, final, meta, begun, {})

    def write(
        self, update: int, placement: Placement, components: Mapping[str, Given], *, final: bool = False
    ) -> None:
        """Write this role's part of the set of `update` and tell the root. Local, then point-to-point."""
        part = part_name(placement)
        if placement.role in ROLES_WITH_ROWS:
            self.mark_rows(_mark_of(update, final))
        with self.timed("checkpoint.write"):
            found = checkpoint.write_part(self._run_dir, update, part, components, aside=self._aside)
        if self._world.rank == self._world.plan.writer:
            if self.is_root:
                self._control.score = self.score()
            else:
                self._control.send_score(self.score())
        if self.is_root:
            self._note(part, update, found, final=final)
        else:
            self._control.send_part(update, bytes.fromhex(found), final=final)

    def poll(self) -> tuple[int, float] | None:
        """On learner 0: complete the set once every part is there; (update, seconds it took) then, else None."""
        if not self.is_root:
            return None
        pending = self._pending
        if pending is None:
            return None
        for rank, update, final, digest in self._control.take_parts():
            (placement,) = self._world.plan.of_rank(rank)
            self._note(part_name(placement), update, digest.hex(), final=final)
        if self.missing():
            return None
        settings = self._config.checkpoint
        checkpoint.complete(
            self._run_dir,
            pending.update,
            pending.hashes,
            meta=pending.meta | {"score": self._control.score},
            keep=settings.keep,
            keep_best=settings.keep_best,
            aside=self._aside,
        )
        self._pending = None
        self._last_time = time.perf_counter()
        took_s = self._last_time - pending.begun
        self._longest_s = max(self._longest_s, took_s)
        return pending.update, took_s

    @property
    def pending(self) -> bool:
        """A set is not complete yet. On learner 0."""
        return self._pending is not None

    def _note(self, part: str, update: int, found: str, *, final: bool) -> None:
        """A part is written; of a set that was given up it does not count."""
        pending = self._pending
        if pending is not None and (update, final) == (pending.update, pending.final):
            pending.hashes[part] = found

    def missing(self) -> str:
        """Parts that are not there yet, for a report. On learner 0."""
        pending = self._pending
        names = [name for name in self._parts if pending is None or name not in pending.hashes]
        if pending is not None and self._control.rows_on_disk != _mark_of(pending.update, pending.final):
            names.append("the rows in the result file")
        return ", ".join(names)

    def _lose(self, rank: int) -> None:
        """Whatever role has died there writes no more parts; one it has written still counts."""
        for placement in self._world.plan.of_rank(rank):
            self._parts.remove(part_name(placement))


def _mark_of(update: int, final: bool) -> int:
    return 2 * update + final


def part_name(placement: Placement) -> str:
    """Name of a role's part. Pure."""
    return f"{placement.role}-{placement.role_rank}"
