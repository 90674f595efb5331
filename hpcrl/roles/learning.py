"""What a learner does with a batch, whichever scheme brought it: update, count, guard, log, finish."""

from __future__ import annotations

import logging
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from hpcrl.algorithms import Algorithm, Batch
from hpcrl.comm.ranks import Placement
from hpcrl.comm.reduce import HierarchicalReducer
from hpcrl.comm.world import LearnerComms
from hpcrl.config import ExitCode
from hpcrl.data.trajectory import Trajectory
from hpcrl.envs import make_vector_env, run_episodes
from hpcrl.models.staging import BatchStaging
from hpcrl.roles.records import table_row
from hpcrl.roles.session import Session, Timers, record_event
from hpcrl.storage import checkpoint
from hpcrl.storage.dump import dump_arrays
from hpcrl.storage.schema import TABLES

if TYPE_CHECKING:
    from hpcrl.comm.device_sum import DeviceReducer

Fields = dict[str, npt.NDArray[Any]]

_log = logging.getLogger(__name__)


class EvaluationInterrupted(Exception):
    """A signal came during the evaluation."""


class Learning:
    """One learner's view of the training: its algorithm, the counters all learners agree on, the results.

    `vote`, `update` and `finish` are collective over the learners.
    """

    def __init__(self, session: Session, placement: Placement, algorithm: Algorithm, timers: Timers) -> None:
        """Collective over the learners: all start from the parameters of role_rank 0."""
        world = session.world
        if world.learners is None:
            raise RuntimeError(f"rank {world.rank} has no learner communicator")
        self._session = session
        self._placement = placement
        self._timers = timers
        self.algorithm = algorithm
        config = session.config
        self._reducer = HierarchicalReducer(
            world.learners, world.waiter, config.reduction, debug=config.comm.debug
        )
        self._reducer.broadcast_array(algorithm.parameters.numpy)
        if config.reduction.shard_optimizer:
            self._share_optimizer()
        device = torch.device(world.seats[world.rank]["device"])
        self._staging = BatchStaging(device)
        self._device_reducer = self._move_to(device, world.learners)
        self._summed: HierarchicalReducer | DeviceReducer = self._device_reducer or self._reducer
        if self.is_root:
            _log.info("%s", self._summed.description)
        self.updates = 0
        self.env_steps = 0
        self._nonfinite = 0

    @property
    def is_root(self) -> bool:
        """Learner 0 publishes, logs, saves and evaluates."""
        return self._placement.role_rank == 0

    @property
    def over(self) -> bool:
        """The budget is used, or learning has failed: all learners know it alike after each update. Local."""
        failed = self._session.outcome["exit_code"] == ExitCode.LEARNING_FAILED
        return failed or self.env_steps >= self._session.config.budget.env_steps

    def vote(self) -> bool:
        """Whether to stop before the next update, the same on all learners. Collective over the learners."""
        if self.over:
            return True
        stop = self._reducer.any_true(self._session.control.stop_requested)
        if stop:
            name = self._session.control.stop_cause  # empty where only another learner knows
            cause = f"stopped by {name} before the budget was used" if name else ""
            self._session.fail(ExitCode.RESUME_ME, cause)
        return stop

    def update(self, trajectories: list[Trajectory], column_offset: int, total_columns: int) -> None:
        """Train on this learner's share of a batch (maybe empty). Collective over the learners."""
        session, started = self._session, perf_counter()
        fields, tensors = self._staging.stage(self._fields(trajectories))
        batch = Batch(
            fields=tensors, column_offset=column_offset, total_columns=total_columns, update=self.updates
        )
        progress = min(self.env_steps / session.config.budget.env_steps, 1.0)
        self._reducer.begin_update(self.updates)
        summed = self._summed.finish_seconds
        result = self.algorithm.update(batch, self._summed, progress)
        self._timers.add("algorithm.update", perf_counter() - started)
        self._timers.add("reducer.mean_gradients", self._summed.finish_seconds - summed)
        histogram = self._lag_histogram(fields)
        slots = fields["valid"].size
        totals = np.array([*histogram, slots], np.float64)
        self._reducer.sum_array(totals)
        valid = float(totals[:-1].sum())
        self.updates += 1
        self.env_steps += int(valid)
        self._guard(result.applied, fields)
        session.report(f"update {self.updates}, {self.env_steps} env_steps")
        if self.is_root:
            self._log(result.metrics, result.applied, totals[:-1], valid / max(totals[-1], 1.0))

    def finish(self) -> None:
        """Fingerprint the weights; the root saves and, when the budget was reached, evaluates.

        Collective over the learners: the others wait for the root, however long the evaluation takes.
        """
        if self._device_reducer is not None:
            self.algorithm.move(torch.device("cpu"))  # to be saved, and to act in the evaluation
        row = table_row(
            "learners",
            role_rank=self._placement.role_rank,
            update=self.updates,
            weights_sha256=self.algorithm.parameters.sha256(),
        )
        self._session.record("learners", row)
        states = self._reducer.gather_states()
        if self.is_root:
            self._save_and_evaluate(states)
        self._reducer.barrier()
        self.algorithm.release()
        if self._device_reducer is not None:
            self._device_reducer.close()
        self._reducer.close()

    def _move_to(self, device: torch.device, learners: LearnerComms) -> DeviceReducer | None:
        """Learn on `device`; what sums gradients there, if they are not summed in host memory."""
        waiter, reduction = self._session.world.waiter, self._session.config.reduction
        if device.type == "cpu" and reduction.form != "torch":
            return None
        from hpcrl.comm.device_sum import DeviceReducer

        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.algorithm.move(device)
        return DeviceReducer(learners, self._reducer, waiter, device, reduction.timeout_s)

    def _share_optimizer(self) -> None:
        vectors = [vector.numpy() for vector in self.algorithm.vectors()]
        shared = self._reducer.share(vectors) if vectors else None
        if shared is None and self.is_root:
            _log.warning(
                "reduction.shard_optimizer has no effect: %s; every learner steps all parameters",
                "learners share no memory" if vectors else "this algorithm has nothing to share",
            )
        if shared is not None:
            memories, own = shared
            self.algorithm.share(
                [torch.from_numpy(one) for one in memories], own, self._reducer.wait_for_node
            )

    def _save_and_evaluate(self, reducer_states: list[dict[str, npt.NDArray[Any]]]) -> None:
        config = self._session.config
        meta = {"env_steps": self.env_steps, "updates": self.updates, "seed": config.seed}
        components = {"learner": self.algorithm.state()}
        components |= {f"reducer-{rank}": state for rank, state in enumerate(reducer_states) if state}
        checkpoint.save(self._session.run_dir, self.updates, components, meta=meta)
        self._session.outcome.update(env_steps=self.env_steps, updates=self.updates)
        if self._session.outcome["exit_code"] == ExitCode.FINISHED and config.evaluation.episodes:
            self._evaluate()

    def _fields(self, trajectories: list[Trajectory]) -> dict[str, list[npt.NDArray[Any]]]:
        """The arrays of each field, to be joined along their columns; at least one."""
        if trajectories:
            names = trajectories[0].fields
            return {name: [trajectory.fields[name] for trajectory in trajectories] for name in names}
        spec = self._session.trajectory_spec
        return {
            field.name: [np.empty((spec.unroll_length + field.extra_step, 0, *field.shape), field.dtype)]
            for field in spec.fields
        }

    def _lag_histogram(self, fields: Fields) -> npt.NDArray[np.int64]:
        """Valid env_steps by lag 0..max_lag. Raises RuntimeError when the lag contract was broken."""
        max_lag = self._session.config.lag.max_lag
        lag = self.updates - fields["parameter_version"][fields["valid"]]
        if lag.size and (lag.min() < 0 or lag.max() > max_lag):
            raise RuntimeError(f"lag {lag.min()}..{lag.max()} outside 0..lag.max_lag={max_lag}")
        return np.bincount(lag, minlength=max_lag + 1)

    def _guard(self, applied: bool, fields: Fields) -> None:
        self._nonfinite = 0 if applied else self._nonfinite + 1
        if applied:
            return
        name = f"nonfinite-update{self.updates:06d}-learner{self._placement.role_rank}.h5"
        path: Path = self._session.run_dir / "logs" / name
        dump_arrays(path, fields)
        most = self._session.config.algorithm.max_nonfinite_updates
        text = (
            f"the gradient of update {self.updates} was not finite; not applied, batch saved as logs/{name}"
        )
        record_event(self._session, self._placement, "nonfinite_update", text)
        if self._nonfinite >= most:
            self._session.fail(
                ExitCode.LEARNING_FAILED,
                f"gradients were not finite in {most} updates in a row (algorithm.max_nonfinite_updates)",
            )

    def _log(
        self, metrics: dict[str, float], applied: bool, histogram: npt.NDArray[Any], valid_fraction: float
    ) -> None:
        lags = np.flatnonzero(histogram)
        lag = {"lag_min": -1, "lag_mean": float("nan"), "lag_max": -1}
        if lags.size:
            mean = float(lags @ histogram[lags] / histogram.sum())
            lag = {"lag_min": int(lags[0]), "lag_mean": mean, "lag_max": int(lags[-1])}
        row = table_row(
            "updates",
            update=self.updates,
            env_steps=self.env_steps,
            applied=applied,
            valid_fraction=valid_fraction,
            parameter_version=self.updates,
            **lag,
            **metrics,
        )
        rows = TABLES["lag"].rows(
            len(lags), update=self.updates, lag=lags, env_steps=histogram[lags].astype(int)
        )
        self._session.record("lag", rows)
        # Last: an update in the file has its lags there too, also after a kill.
        self._session.record("updates", row)

    def _evaluate(self) -> None:
        config = self._session.config
        evaluation = config.evaluation
        self._session.report(f"evaluation of {evaluation.episodes} episodes")
        env_config = config.env.model_copy(update={"num_envs": evaluation.episodes, "num_groups": 1})
        env = make_vector_env(env_config, range(evaluation.episodes), evaluation.seed)
        rng = np.random.default_rng(evaluation.seed)

        def act(obs: npt.NDArray[Any]) -> npt.NDArray[Any]:
            self._session.control.poll()
            self._session.poll_records()  # the last updates, for who reads the file meanwhile
            if self._session.control.stop_requested:
                raise EvaluationInterrupted
            return self.algorithm.act(obs, rng, greedy=evaluation.greedy)["action"]

        try:
            episodes = run_episodes(env, act, evaluation.max_episode_steps)
        except EvaluationInterrupted:
            record_event(
                self._session,
                self._placement,
                "evaluation_interrupted",
                f"by {self._session.control.stop_cause}",
            )
            return
        finally:
            env.close()
        rows = TABLES["evaluation"].rows(
            len(episodes),
            update=self.updates,
            env_steps=self.env_steps,
            seed=evaluation.seed,
            episode=np.arange(len(episodes)),
            episode_return=np.array([episode[0] for episode in episodes]),
            episode_length=np.array([episode[1] for episode in episodes]),
            cut=np.array([episode[2] for episode in episodes]),
        )
        self._session.record("evaluation", rows)
