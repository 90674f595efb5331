"""Algorithms that keep more between updates than parameters: a run in two attempts ends as one that was not stopped."""

import numpy as np

from hpcrl.audit.verdict import audit
from hpcrl.storage import read_table
from hpcrl.storage.summary import describe
from tests.mpi.resume_support import (
    attempt,
    folder,
    half,
    on_root,
    pipeline,
    synchronous,
    weights,
)

IMPACT = {
    "name": "impact",
    "unroll_length": 8,
    "buffer_batches": 2,
    "batch_uses": 3,
    "target_update_updates": 5,
    "num_minibatches": 2,
}
"""A batch is used in three updates, those of two batches in turn."""


def check_cut_in_two(comm, path, settings, stop_at):
    """Stopped at an update and resumed; the run directories of both, the first of them whole."""
    whole, cut = path / "whole", path / "cut"
    assert attempt(comm, whole, settings) == 0
    assert attempt(comm, cut, settings, stop_at=stop_at) == 75
    stopped = on_root(comm, describe, cut)
    assert stop_at <= stopped["updates"] < on_root(comm, describe, whole)["updates"]
    assert attempt(comm, cut, settings, resume="must") == 0
    assert weights(comm, cut) == weights(comm, whole)
    assert on_root(comm, proved, cut) and on_root(comm, proved, whole)
    return whole, stopped["updates"]


def proved(run_dir):
    return audit(run_dir).proved


def test_batches_that_are_used_several_times(comm):
    """No cut lies where the buffer of batches holds something that is to be used again.

    One rank is a worker of the synchronous scheme; of four the second learner of a pipeline has no trajectories.
    """
    how = {"algorithm": IMPACT, "lag": {"max_lag": 5}, "budget": {"env_steps": 600}}
    with half(comm) as world, folder(world) as path:
        ranks = {"actors": 1, "replay": 1, "learners": world.size - 2}
        alone = world.size == 1
        settings = synchronous(1, **how) if alone else pipeline(world.size, ranks=ranks, **how)
        whole, stopped = check_cut_in_two(world, path, settings, 4)
        assert stopped % 6 == 0
        on_root(world, check_uses, whole, 4 if alone else 5)


def check_uses(path, oldest):
    """Each batch three times, its env_steps counted once, and as old as the bound at the most."""
    updates, lag = read_table(path, "updates"), read_table(path, "lag")
    assert updates["batch_use"].tolist() == [1 + index % 6 // 2 for index in range(len(updates))]
    assert lag["lag"][lag["env_steps"] > 0].max() == oldest
    new = np.isin(lag["update"], updates["update"][updates["batch_use"] == 1])
    assert lag["env_steps"][new].sum() == describe(path)["env_steps"] == updates["env_steps"][-1]


def test_gradients_of_actors(comm):
    """Those that wait at the replay rank are of an older version, and are in the checkpoint with it."""
    with half(comm) as world, folder(world) as path:
        settings = pipeline(world.size, 1, algorithm={"name": "a3c", "unroll_length": 8})
        check_cut_in_two(world, path, settings, 4)
