"""CartPole through actor, replay and learner, from the command line to the last table. One run, many looks at it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from hpcrl.algorithms import make_algorithm
from hpcrl.comm.ranks import share
from hpcrl.config import RunConfig
from hpcrl.envs import make_env_spec
from hpcrl.storage import checkpoint
from tests.system.support import TOP, run

BUDGET = 60_000
NUM_ENVS, UNROLL_LENGTH = 256, 32


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    recipe = str(TOP / "jobs" / "cartpole.py") + ":impala"
    return run(tmp_path_factory.mktemp("cartpole"), f"budget.env_steps={BUDGET}", recipe=recipe)


@pytest.fixture(scope="module")
def summary(ended):
    command = [sys.executable, "-m", "hpcrl", "describe", str(ended.run_dir), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_it_ends_with_zero_and_the_run_directory_on_the_last_line(ended):
    assert ended.code == 0, ended.stderr
    assert (ended.folder / ended.stdout.splitlines()[-1]) == ended.run_dir
    assert ended.named_failures() == []


def test_it_is_described_as_finished(summary):
    assert (summary["status"], summary["exit_code"], summary["cause"]) == ("finished", 0, "")
    assert BUDGET <= summary["env_steps"] < BUDGET + NUM_ENVS * UNROLL_LENGTH
    assert summary["budget_env_steps"] == BUDGET
    assert summary["events"] == {"started": 1, "checkpoint": 1, "finished": 1}
    assert summary["env_steps_per_s"] == pytest.approx(summary["env_steps"] / summary["wall_s"])


def test_the_rank_plan_is_one_of_each(summary):
    ranks = summary["ranks"]
    assert [rank["world_rank"] for rank in ranks] == [0, 1, 2]
    assert sorted(rank["role"] for rank in ranks) == ["actor", "learner", "replay"]
    assert len({rank["pid"] for rank in ranks}) == 3


def test_the_policy_is_evaluated_on_twenty_episodes(ended, summary):
    assert summary["evaluation"]["n"] == 20
    rows = ended.table("evaluation")
    assert set(rows["update"]) == {summary["updates"]}
    assert not rows["cut"].any()
    np.testing.assert_array_equal(
        rows["episode_return"], rows["episode_length"]
    )  # CartPole pays 1 per env_step


def test_updates_count_on_without_a_gap(ended):
    rows = ended.table("updates")
    np.testing.assert_array_equal(rows["update"], np.arange(1, len(rows) + 1))
    assert (np.diff(rows["env_steps"]) > 0).all()
    assert (np.diff(rows["time_s"]) >= 0).all()
    assert rows["applied"].all()
    assert BUDGET - NUM_ENVS * UNROLL_LENGTH <= rows["env_steps"][-2] < BUDGET
    for name in ("policy_loss", "value_loss", "entropy", "grad_norm", "learning_rate"):
        assert np.isfinite(rows[name]).all(), name


def test_every_trained_env_step_has_a_lag_of_at_most_one(ended, summary):
    lag, updates = ended.table("lag"), ended.table("updates")
    assert int(lag["env_steps"].sum()) == summary["env_steps"]
    assert set(lag["lag"]) <= {0, 1}
    assert summary["lag"]["max"] == updates["lag_max"].max() == lag["lag"].max()
    trained = np.diff(updates["env_steps"], prepend=0)
    for update, env_steps in zip(updates["update"], trained, strict=True):
        assert lag["env_steps"][lag["update"] == update].sum() == env_steps
    np.testing.assert_allclose(updates["valid_fraction"], trained / (NUM_ENVS * UNROLL_LENGTH))


def test_the_actor_works_while_the_learner_does(ended):
    """max_lag=1: but for the first update, data are one update old."""
    assert (ended.table("updates")["lag_min"][1:] >= 0).all()
    assert (ended.table("updates")["lag_max"][1:] == 1).mean() > 0.5


def test_episodes_are_in_raw_units(ended, summary):
    rows = ended.table("episodes")
    np.testing.assert_array_equal(rows["episode_return"], rows["episode_length"])
    assert rows["episode_return"].min() >= 8 and rows["episode_return"].max() <= 500
    np.testing.assert_array_equal(rows["truncated"], rows["episode_length"] == 500)
    assert set(rows["env_index"]) == set(range(NUM_ENVS))
    assert 12 < rows["episode_return"][:NUM_ENVS].mean() < 27  # the shorter ones of a random policy, about 22
    assert rows["parameter_version"].max() <= summary["updates"]
    assert rows["env_steps"].max() <= summary["env_steps"]


def test_traffic_is_counted_and_agrees_with_the_updates(ended, summary):
    rows = ended.table("edges")
    rank = {row["role"]: row["world_rank"] for row in summary["ranks"]}

    def edge(stream, source, dest):
        (row,) = rows[
            (rows["stream"] == stream) & (rows["source"] == rank[source]) & (rows["dest"] == rank[dest])
        ]
        return int(row["messages"]), int(row["bytes"])

    trajectories, nbytes = edge(b"trajectory", "actor", "replay")
    batches, batch_bytes = edge(b"batch", "replay", "learner")
    assert summary["updates"] <= batches <= trajectories <= summary["updates"] + 4
    assert nbytes // trajectories == batch_bytes // batches > 4 * 4 * NUM_ENVS * UNROLL_LENGTH
    assert not (rows["stream"] == b"parameters").any()  # the actor reads them where the learner put them


def test_every_hop_is_timed(ended, summary):
    rows = ended.times()
    hops = {(row["role"].decode(), row["hop"].decode()) for row in rows}
    expected = {
        ("actor", "grant.wait"),
        ("actor", "policy.fetch"),
        ("actor", "algorithm.act"),
        ("actor", "env.recv"),
        ("actor", "trajectory.write"),
        ("actor", "stream.send"),
        ("replay", "replay.insert"),
        ("replay", "replay.sample"),
        ("learner", "batch.wait"),
        ("learner", "algorithm.update"),
        ("learner", "publisher.publish"),
    }
    assert expected <= hops
    assert (rows["seconds"] >= 0).all() and (rows["count"] > 0).all()
    updates = rows[rows["hop"] == b"algorithm.update"]
    assert updates["count"].tolist() == [summary["updates"]]


def test_the_checkpoint_holds_the_weights_whose_hash_is_logged(ended, summary):
    saved = checkpoint.newest(ended.run_dir)
    assert saved.update == summary["updates"]
    assert saved.meta["env_steps"] == summary["env_steps"]
    config = RunConfig.parse(json.loads((ended.run_dir / "config.json").read_text()))
    algorithm = make_algorithm(config, make_env_spec(config.env))
    before = algorithm.parameters.sha256()
    saved.restore("learner-0", "algorithm", algorithm.load_state)
    assert algorithm.parameters.sha256() == summary["weights_sha256"][0] != before
    assert summary["weights_equal"]


def test_provenance_names_library_launcher_and_threads(ended):
    provenance = json.loads((ended.run_dir / "provenance.json").read_text())
    assert provenance["launcher"] == "hydra"
    assert "MPICH" in provenance["mpi_library"]
    assert provenance["threads_per_rank"] == 1
    assert provenance["versions"]["torch"]


def test_its_config_runs_again_elsewhere(ended, tmp_path):
    again = run(
        tmp_path,
        "storage.run_dir=runs/again",
        "budget.env_steps=10000",
        recipe=str(ended.run_dir / "config.json"),
    )
    assert again.code == 0, again.stderr
    assert again.run_dir == tmp_path / "runs" / "again"
    first, second = (
        json.loads((where / "config.json").read_text()) for where in (ended.run_dir, again.run_dir)
    )
    second["storage"]["run_dir"] = first["storage"]["run_dir"]
    second["budget"]["env_steps"] = BUDGET
    assert first == second
    ended_in = set(again.table("episodes")["env_index"])
    assert ended_in <= set(share(NUM_ENVS, 1, 0))
    assert len(ended_in) > NUM_ENVS / 2  # not all: an episode may outlast the 40 env_steps that each has here


def test_a_directory_that_holds_a_run_is_refused_before_anything_starts(ended, tmp_path):
    before = sorted(path.name for path in ended.run_dir.rglob("*"))
    refused = run(tmp_path, f"storage.run_dir={ended.run_dir}")
    assert refused.code == 2
    (line,) = refused.named_failures()
    assert "storage.run_dir" in line and "already holds a run" in line
    assert sorted(path.name for path in ended.run_dir.rglob("*")) == before


def test_curves_need_neither_mpi_nor_torch(ended, tmp_path):
    for name in ("mpi4py", "torch"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not here')\n")
    script = str(TOP / "analysis" / "curves.py")
    command = [sys.executable, script, str(ended.run_dir), "--out", "curves.png", "--csv", "curves.csv"]
    path = os.pathsep.join([str(tmp_path), str(TOP)])
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "MPLCONFIGDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "curves.csv").read_text().splitlines()
    assert len(lines) == 1 + len(ended.table("episodes"))
