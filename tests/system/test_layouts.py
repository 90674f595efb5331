"""Other worlds than one rank of each: several of a kind, uneven shares, nothing to do, one process, all alike."""

import numpy as np
import pytest

from tests.system.support import TOY, lags, run

SYNCHRONOUS = TOY | {
    "scheme": "synchronous",
    "algorithm": {"name": "ppo", "unroll_length": 8, "epochs": 2, "num_minibatches": 2},
}
COUNTED_RETURNS = {15.0, 28.0}
"""1 + ... + 5 and 1 + ... + 7: what an episode of the counting environment gives."""


def check(ended, num_envs=6, learners=1, max_lag=1):
    """What holds for every finished run of the counting environment, however it was laid out."""
    assert ended.code == 0, ended.stderr
    summary = ended.describe()
    assert summary["status"] == "finished"
    assert summary["env_steps"] >= 400
    assert len(summary["weights_sha256"]) == learners
    assert summary["weights_equal"]
    assert lags(ended)[-1] <= max_lag
    assert int(ended.table("lag")["env_steps"].sum()) == summary["env_steps"]
    episodes = ended.table("episodes")
    assert set(episodes["env_index"]) == set(range(num_envs))
    assert set(episodes["episode_return"]) <= COUNTED_RETURNS
    np.testing.assert_array_equal(episodes["truncated"], episodes["episode_return"] == 28.0)
    return summary


def test_two_actors_two_learners_started_by_mpiexec(tmp_path):
    settings = ("ranks.actors=2", "ranks.learners=2")
    ended = run(tmp_path, *settings, mpiexec=5)
    summary = check(ended, learners=2)
    assert [rank["role"] for rank in summary["ranks"]] == ["replay", "learner", "learner", "actor", "actor"]
    assert set(ended.table("episodes")["actor"]) == {0, 1}
    timers = ended.times()
    sums = timers[timers["hop"] == b"reducer.mean_gradients"]
    updates = timers[timers["hop"] == b"algorithm.update"]
    assert (sums["count"] == summary["updates"]).all() and (sums["seconds"] > 0).all()
    assert (sums["seconds"] < updates["seconds"]).all() and len(sums) == len(updates) == 2


def test_everything_that_checks_is_on_and_messages_travel_in_small_parts(tmp_path):
    """Two of each kind, five trajectories per update, each of which travels in four messages of 1 KiB."""
    ended = run(
        tmp_path,
        *("ranks.actors=2", "ranks.replay=2", "ranks.learners=2", "env.num_envs=24"),
        *("comm.debug=true", "comm.checksum=true", "comm.chunk_bytes=1024"),
        *("algorithm.batch_trajectories=5", "budget.env_steps=3000"),
    )
    summary = check(ended, num_envs=24, learners=2)
    edges = ended.table("edges")
    trajectories = edges[edges["stream"] == b"trajectory"]
    assert len(trajectories) == 2
    assert (trajectories["bytes"] > 2048 * trajectories["messages"]).all()
    assert trajectories["messages"].sum() >= 5 * summary["updates"]
    assert ended.table("updates")["env_steps"][0] <= 5 * 12 * 8


def test_shares_that_do_not_divide(tmp_path):
    """7 environments over 3 actors, 3 trajectories over 2 learners, 3 actors over 2 replay ranks."""
    ended = run(
        tmp_path,
        *("env.num_envs=7", "ranks.actors=3", "ranks.replay=2", "ranks.learners=2"),
        "algorithm.batch_trajectories=3",
    )
    check(ended, num_envs=7, learners=2)
    # the third column of two of the three actors is never valid
    assert ended.table("updates")["valid_fraction"].max() <= 7 / 9


def test_a_learner_with_nothing_to_do_keeps_up(tmp_path):
    settings = ("algorithm.batch_trajectories=1", "ranks.learners=2", "ranks.actors=2")
    check(run(tmp_path, *settings), learners=2)


def test_a_pipeline_in_one_process(tmp_path):
    ended = run(tmp_path, ranks=1)
    summary = check(ended)
    assert sorted(rank["role"] for rank in summary["ranks"]) == ["actor", "learner", "replay"]
    assert len({rank["pid"] for rank in summary["ranks"]}) == 1


@pytest.mark.parametrize(("ranks", "algorithm"), [(1, "ppo"), (2, "ppo"), (3, "impala")])
def test_synchronous(tmp_path, ranks, algorithm):
    recipe = SYNCHRONOUS if algorithm == "ppo" else TOY | {"scheme": "synchronous"}
    ended = run(tmp_path, "env.num_envs=7", ranks=ranks, recipe=recipe)
    summary = check(ended, num_envs=7, learners=ranks, max_lag=0)
    assert [rank["role"] for rank in summary["ranks"]] == ["worker"] * ranks
    assert set(ended.table("episodes")["actor"]) == set(range(ranks))
    columns = ranks * -(-7 // ranks)
    assert ended.table("updates")["valid_fraction"].max() <= 7 / columns


def test_a_world_that_does_not_fit_is_refused_by_every_rank_at_once(tmp_path):
    refused = run(tmp_path, mpiexec=4)
    assert refused.code == 2
    (line,) = refused.named_failures()
    assert "4 ranks were started" in line and "ranks.actors=2" in line
    assert refused.run_dir is None
