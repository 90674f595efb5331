"""What a learner does with a batch, whichever scheme brought it: update, count, guard, log, finish."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcrl.algorithms import Algorithm, Batch
from hpcrl.comm.groups import LearnerComms
from hpcrl.comm.ranks import Placement
from hpcrl.comm.reduce import HierarchicalReducer
from hpcrl.config import ExitCode
from hpcrl.data.reuse import reuse_of
from hpcrl.data.trajectory import Trajectory
from hpcrl.models.staging import BatchStaging
from hpcrl.roles.account import open_account
from hpcrl.roles.batch import parts_of
from hpcrl.roles.evaluation import Evaluations
from hpcrl.roles.guard import Guard
from hpcrl.roles.learner_state import (
    Counters,
    learner_components,
    restore_learner,
    restore_reducer,
    share_optimizer,
)
from hpcrl.roles.records import record_sums, record_update, table_row
from hpcrl.roles.session import RoleLoop, Session, record_event
from hpcrl.storage.parts import Given

if TYPE_CHECKING:
    from hpcrl.algorithms.base import Vector
    from hpcrl.comm.device_sum import DeviceReducer

_log = logging.getLogger(__name__)


class Learning:
    """One learner's view of the training: its algorithm, the counters all learners agree on, the results.

    `vote`, `update` and `finish` are collective over the learners, which call `cut` and `end` alike.
    """

    def __init__(
        self,
        session: Session,
        placement: Placement,
        algorithm: Algorithm,
        *,
        cut_ahead: int = 0,
    ) -> None:
        """Collective over the learners: all start from the parameters of role_rank 0, or from the run's checkpoint.

        `cut_ahead`: new batches that are trained on from the decision for a cut to the cut itself.
        """
        world = session.world
        if world.learners is None:
            raise RuntimeError(f"rank {world.rank} has no learner communicator")
        self._session = session
        self._placement = placement
        self._timers = session.timers
        self.algorithm = algorithm
        algorithm.timed = self._timers
        config = session.config
        self._reducer = HierarchicalReducer(
            world.learners, world.waiter, config.reduction, debug=config.comm.debug, timed=self._timers
        )
        self._cut_ahead = cut_ahead
        self.reuse = reuse_of(config, session.cuts.first_update)
        self._account = open_account(session, placement.role_rank)
        self.cut_at: int | None = None
        """The update at which the next cut lies, once agreed on."""
        self.stopping = False
        """The run ends with that cut."""
        self._counters = Counters()
        self._guard = Guard(session, placement, self._counters)
        restore_learner(session, placement, algorithm, self._counters)
        self._reducer.broadcast_array(algorithm.parameters.numpy)
        if config.reduction.shard_optimizer:
            share_optimizer(algorithm, self._reducer, root=self.is_root)
        restore_reducer(session, placement, algorithm, self._reducer)
        device = torch.device(world.seats[world.rank]["device"])
        self._staging = BatchStaging(device)
        self._device_reducer = self._move_to(device, world.learners)
        self._summed: HierarchicalReducer | DeviceReducer = self._device_reducer or self._reducer
        self._evaluations: Evaluations | None = None
        if self.is_root:
            self._evaluations = Evaluations(session, placement, algorithm, self._counters)
            _log.info("%s", self._summed.description)
            _log.info("%s", config.algorithm.describe_learning_rate(config.gradient_batch))

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        return self._counters.updates

    @property
    def env_steps(self) -> int:
        """Of the whole run: valid ones trained on, or those inserted into the replay memory."""
        return self._counters.env_steps

    @property
    def is_root(self) -> bool:
        """Learner 0 publishes, logs, completes checkpoints and evaluates."""
        return self._placement.role_rank == 0

    @property
    def over(self) -> bool:
        """The budget is used, or learning has failed: all learners know it alike after each update. Local."""
        failed = self._session.outcome["exit_code"] == ExitCode.LEARNING_FAILED
        return failed or self.env_steps >= self._session.config.budget.env_steps

    def vote(self) -> bool:
        """Whether to stop before the next update, the same on all learners. Collective over the learners.

        A cut that is due is agreed on here too; so is a stop that waits for a cut, where every trajectory counts.
        """
        if self.over:
            return True
        if self.stopping:
            return False
        session, cuts = self._session, self._session.cuts
        # A cut lies where no batch is to be used again, so it holds none.
        next_cut = self.reuse.empty_after(self.updates, self._cut_ahead)
        due = cuts.is_root and self.cut_at is None and cuts.due(next_cut)
        wanted = np.array([session.control.stop_requested, due], np.float64)
        with self._timers("learners.vote"):
            self._reducer.sum_array(wanted)
        stop, cut = (wanted > 0).tolist()
        if self.cut_at is None and (cut or (stop and self._keeps_everything)):
            self.cut_at = next_cut
            cuts.decided()
        self.stopping = stop
        return bool(stop and not self._keeps_everything)

    @property
    def stop_heard(self) -> bool:
        """A signal came that the learners have not agreed on yet. Local."""
        return self._session.control.stop_requested and not self.stopping

    @property
    def cut_here(self) -> bool:
        """The next update waits for a cut. Local, equal on all learners."""
        return self.cut_at == self.updates

    def cut(self, others: Mapping[str, Given]) -> None:
        """Write this role's part, `others` included, of a set that the run goes on from. Local."""
        self.cut_at = None
        self._session.cuts.begin(self.updates, self.env_steps)
        self._session.cuts.write(self.updates, self._placement, self._components(others))

    def poll(self) -> None:
        """Progress of a set that is not complete. Local."""
        for kind, text in self._session.cuts.poll():
            record_event(self._session, self._placement, kind, text)

    def end(self, progress: Callable[[], object] = lambda: None) -> RoleLoop:
        """After `vote`: every rank hears of the end, and whether to save its state once all is drained.

        A cut at this very update is completed first where that counts or takes no time, with `progress` meanwhile.
        """
        session, cuts = self._session, self._session.cuts
        stopped, cause = self.stopping and not self.over, ""
        self.cut_at = None
        completes = self._keeps_everything or self._cut_ahead == 0
        while completes and cuts.pending and cuts.last == self.updates:
            progress()
            self.poll()
            yield False
        if self.is_root:
            code, cause = cuts.bad_end(self.updates) if stopped else (None, "")
            save = code != ExitCode.RANK_FAILED and (cuts.pending or cuts.last != self.updates)
            if save:
                cuts.begin(self.updates, self.env_steps, final=True)
            session.control.announce_stop(self.updates if save else None, code=code or 0)
        while not session.control.stopped:
            progress()
            session.control.poll()
            yield False
        if session.control.code:
            session.fail(ExitCode(session.control.code), cause)
        elif stopped:
            name = session.control.stop_cause  # empty where only another learner knows
            session.fail(ExitCode.RESUME_ME, f"stopped by {name} before the budget was used" if name else "")

    def update(self, trajectories: list[Trajectory], column_offset: int, total_columns: int) -> Vector | None:
        """Train on this learner's share of a batch (maybe empty); new priorities. Collective over the learners."""
        session = self._session
        with self._timers("algorithm.update"):
            fields, tensors = self._staging.stage(parts_of(trajectories, session.trajectory_spec))
            batch = Batch(
                fields=tensors,
                column_offset=column_offset,
                total_columns=total_columns,
                update=self.updates,
                check_finite=session.config.faults.has("finite-check"),
            )
            use = self.reuse.use(self.updates)
            self._account.look(self.updates, fields, trajectories)
            progress = min(self.env_steps / session.config.budget.env_steps, 1.0)
            self._reducer.begin_update(self.updates)
            result = self.algorithm.update(batch, self._summed, progress)
            if result.applied and use == 1:
                self.algorithm.observe(batch, self._summed)
        with self._timers("reducer.sum_counts"):
            sums = self._account.sums()
            self._reducer.sum_array(sums)
        trained = self._account.book(sums, self.env_steps, again=use > 1)
        self._counters.env_steps = trained.env_steps
        self._counters.updates += 1
        self._timers.counter("lag", trained.lag.get("lag_mean", 0.0))
        self._guard.look(result.applied, self.updates, fields, trajectories)
        session.report(f"update {self.updates}, {self.env_steps} env_steps")
        if self.is_root:
            metrics = {**result.metrics, "batch_use": use}
            record_update(session.record, self.updates, trained, metrics, applied=result.applied)
        return result.priorities

    def evaluate(self, progress: Callable[[], object] = lambda: None) -> None:
        """Between updates, before a cut: an evaluation that is due, on the root, with `progress` meanwhile. Local."""
        if self._evaluations is not None:
            # where training goes on to a cut after a signal, the evaluation belongs before that, too
            self._evaluations.between_updates(progress, interruptible=not self._keeps_everything)

    def finish(self, others: Mapping[str, Given]) -> RoleLoop:
        """Fingerprint the weights and write this role's part of the last set; the root evaluates, if at the budget.

        Collective over the learners: the others wait for the root, however long the evaluation takes.
        """
        session, config = self._session, self._session.config
        if self._device_reducer is not None:
            self.algorithm.move(torch.device("cpu"))  # to be saved, and to act in the evaluation
        row = table_row(
            "learners",
            role_rank=self._placement.role_rank,
            update=self.updates,
            weights_sha256=self.algorithm.parameters.sha256(),
        )
        session.record("learners", row)
        record_sums(session.record, session.world.rank, self._timers, self._reducer.sent_bytes)
        if session.control.save_at is not None:
            yield from session.cuts.write_last(self.updates, self._placement, self._components(others))
        limit_s, began = config.comm.drain_timeout_s, perf_counter()
        while session.cuts.pending or session.cuts.marks:  # nobody sends any in a collective
            self.poll()
            if session.cuts.last_is_lost():
                session.fail(ExitCode.RANK_FAILED, session.cuts.bad_end(self.updates)[1])
            elif not session.cuts.refused and perf_counter() - began > limit_s:
                raise TimeoutError(
                    f"no part of the last checkpoint from {session.cuts.missing()} within {limit_s:g} s "
                    "(comm.drain_timeout_s)"
                )
            yield False
        if self._evaluations is not None:
            self._evaluations.at_the_end(finished=session.outcome["exit_code"] == ExitCode.FINISHED)
        self._reducer.barrier()
        self.algorithm.release()
        if self._device_reducer is not None:
            self._device_reducer.close()
        self._reducer.close()

    @property
    def _keeps_everything(self) -> bool:
        """A stop loses no trajectory, under way or to be used again: a resumed run goes on as if there was none."""
        config = self._session.config
        reused = config.scheme == "synchronous" and self.reuse.uses > 1
        return reused or (config.deterministic and self._cut_ahead > 0)

    def _components(self, others: Mapping[str, Given]) -> dict[str, Given]:
        own = learner_components(self.algorithm, self._counters, self._reducer, root=self.is_root)
        return {**own, **others}

    def _move_to(self, device: torch.device, learners: LearnerComms) -> DeviceReducer | None:
        """Learn on `device`; what sums gradients there, if they are not summed in host memory."""
        waiter, reduction = self._session.world.waiter, self._session.config.reduction
        if device.type == "cpu" and reduction.form != "torch":
            return None
        from hpcrl.comm.device_sum import DeviceReducer

        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.algorithm.move(device)
        return DeviceReducer(learners, self._reducer, waiter, device, reduction.timeout_s, timed=self._timers)
