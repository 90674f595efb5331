"""The evaluation of the frozen final policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.algorithms import Acting, Algorithm
from hpcrl.comm.ranks import Placement
from hpcrl.envs import make_vector_env, run_episodes
from hpcrl.roles.session import Session, record_event
from hpcrl.storage.schema import TABLES


class EvaluationInterrupted(Exception):
    """A signal came during the evaluation."""


def evaluate(
    session: Session, placement: Placement, algorithm: Algorithm, updates: int, env_steps: int
) -> None:
    """Run the episodes of the `evaluation` section and record them; a signal ends it early. Local."""
    config = session.config
    evaluation = config.evaluation
    session.report(f"evaluation of {evaluation.episodes} episodes")
    env_config = config.env.model_copy(update={"num_envs": evaluation.episodes, "num_groups": 1})
    env = make_vector_env(env_config, range(evaluation.episodes), evaluation.seed)
    rng = np.random.default_rng(evaluation.seed)
    acting = Acting(algorithm, evaluation.episodes)

    def act(obs: npt.NDArray[Any], begins: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        session.timers.then("evaluation")  # each step is one
        session.world.waiter.work()
        session.control.poll()
        session.poll_records()  # the last updates, for who reads the file meanwhile
        if session.control.stop_requested:
            raise EvaluationInterrupted
        acting.restart(begins)
        return algorithm.to_env(acting.act(obs, rng, greedy=evaluation.greedy)["action"])

    try:
        with session.timers("evaluation"):
            episodes = run_episodes(env, act, evaluation.max_episode_steps)
    except EvaluationInterrupted:
        record_event(session, placement, "evaluation_interrupted", f"by {session.control.stop_cause}")
        return
    finally:
        env.close()
    rows = TABLES["evaluation"].rows(
        len(episodes),
        update=updates,
        env_steps=env_steps,
        seed=evaluation.seed,
        episode=np.arange(len(episodes)),
        episode_return=np.array([episode[0] for episode in episodes]),
        episode_length=np.array([episode[1] for episode in episodes]),
        cut=np.array([episode[2] for episode in episodes]),
    )
    session.record("evaluation", rows)
