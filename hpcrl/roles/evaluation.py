"""Evaluations of the frozen policy, at fixed env_steps and at the end, and the models that are stored with them.

Learner 0 does both between two updates. Nothing that training goes on from is touched: environments, random stream and
what the policy remembers are made for the evaluation, by its own seed, the same each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.algorithms import Algorithm, frozen_policy
from hpcrl.comm.ranks import Placement
from hpcrl.envs import EpisodeResult, evaluate_policy
from hpcrl.roles.learner_state import Counters
from hpcrl.roles.session import Session, record_event
from hpcrl.storage.models import ModelStore, Score
from hpcrl.storage.schema import TABLES

_log = logging.getLogger(__name__)


class EvaluationInterrupted(Exception):
    """A signal came during the evaluation."""


class Evaluations:
    """Which evaluations are due, and which models are stored; on learner 0 alone. Local."""

    def __init__(
        self,
        session: Session,
        placement: Placement,
        algorithm: Algorithm,
        counters: Counters,
    ) -> None:
        """`counters`: of the whole run; an evaluation notes there that it has been made, so that none is made twice.

        Models of updates after the one that the run goes on from are forgotten, as their rows are.
        """
        self._session, self._placement, self._algorithm = session, placement, algorithm
        self._counters = counters
        self._every = session.config.evaluation.every_env_steps
        if not session.config.evaluation.episodes:
            self._every = None
        self._last = -1
        """Update of the last evaluation in this attempt."""
        self._store = ModelStore(session.run_dir, session.config.models.keep)
        self._store.forget_after(session.cuts.first_update if session.cuts.saved is not None else -1)

    def between_updates(self, progress: Callable[[], object], *, interruptible: bool) -> None:
        """Evaluate if a multiple of evaluation.every_env_steps has been reached since the last time.

        `progress` is called after each env_step. One that a signal interrupts is made when the run is resumed.
        """
        counters = self._counters
        if self._every is None or (
            counters.env_steps // self._every > counters.evaluated // self._every
            and self._evaluate(progress, interruptible=interruptible)
        ):
            counters.evaluated = counters.env_steps

    def at_the_end(self, *, finished: bool) -> None:
        """Evaluate if the run is finished, and store the model in any case, unless both have been done here."""
        if self._last == self._counters.updates:
            return
        wanted = finished and self._session.config.evaluation.episodes
        if not (wanted and self._evaluate(lambda: None, interruptible=True)):
            self._keep(None)

    def _evaluate(self, progress: Callable[[], object], *, interruptible: bool) -> bool:
        """Whether it came to its end."""
        counters = self._counters
        found = evaluate(
            *(self._session, self._placement, self._algorithm, counters.updates, counters.env_steps),
            progress,
            interruptible=interruptible,
        )
        if found is None:
            return False
        self._last = counters.updates
        self._keep([one.episode_return for one in found])
        return True

    def _keep(self, returns: list[float] | None) -> None:
        config, counters = self._session.config, self._counters
        score = (
            None if returns is None else Score.of(returns, config.evaluation.seed, config.evaluation.greedy)
        )
        try:
            with self._session.timers("models.store"):
                parameters = self._algorithm.parameters.named()
                attempt = self._session.world.attempt
                self._store.add(
                    counters.updates, parameters, score, env_steps=counters.env_steps, attempt=attempt
                )
        except OSError as error:  # training goes on; a checkpoint that cannot be written would end it
            _log.warning("the model of update %d is not stored: %s", counters.updates, error)
            record_event(self._session, self._placement, "model_not_stored", str(error))


def evaluate(
    session: Session,
    placement: Placement,
    algorithm: Algorithm,
    updates: int,
    env_steps: int,
    progress: Callable[[], object] = lambda: None,
    *,
    interruptible: bool = True,
) -> list[EpisodeResult] | None:
    """Run the episodes of the `evaluation` section and record them; None where a signal ended it early. Local."""
    settings = session.config.evaluation
    session.report(f"evaluation of {settings.episodes} episodes at update {updates}")
    policy = frozen_policy(algorithm, settings.episodes, settings.seed, greedy=settings.greedy)

    def act(obs: npt.NDArray[Any], begins: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        session.timers.then("evaluation")  # each step is one
        session.world.waiter.work()
        session.control.poll()
        session.poll_records()  # the last updates, for who reads the file meanwhile
        progress()
        if interruptible and session.control.stop_requested:
            raise EvaluationInterrupted
        return policy(obs, begins)

    try:
        with session.timers("evaluation"):
            episodes = evaluate_policy(session.config.env, settings, act)
    except EvaluationInterrupted:
        record_event(session, placement, "evaluation_interrupted", f"by {session.control.stop_cause}")
        return None
    rows = TABLES["evaluation"].rows(
        len(episodes),
        update=updates,
        env_steps=env_steps,
        seed=settings.seed,
        episode=np.arange(len(episodes)),
        episode_return=np.array([episode.episode_return for episode in episodes]),
        episode_length=np.array([episode.length for episode in episodes]),
        cut=np.array([episode.cut for episode in episodes]),
        parameter_version=updates,
    )
    session.record("evaluation", rows)
    return episodes
