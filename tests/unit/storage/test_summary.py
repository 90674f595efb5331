import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from hpcrl.config import ConfigError, RunConfig
from hpcrl.storage import TABLES, RunDirectory, RunLog, describe, find_run, link_attempts, render
from hpcrl.storage.writing import abandon


def config(tmp_path):
    return RunConfig.parse(
        {
            "name": "toy",
            "env": {"id": "CartPole-v1"},
            "algorithm": {"name": "ppo"},
            "budget": {"env_steps": 1000},
            "storage": {"runs_dir": str(tmp_path)},
        }
    )


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(config(tmp_path)) as directory:
        yield directory


def open_log(run):
    return RunLog(run.attempt_file, config_json="{}", provenance={}, attempt=run.attempt)


def fill(log, updates=10):
    for update in range(1, updates + 1):
        log.append(
            "updates",
            TABLES["updates"].row(update=update, env_steps=100 * update, time_s=2.0 * update, applied=True),
        )
        log.append("lag", TABLES["lag"].rows(2, update=update, lag=[0, 3], env_steps=[75, 25]))
    episodes = np.arange(150)
    log.append(
        "episodes",
        TABLES["episodes"].rows(
            150, env_steps=episodes, time_s=0.0, episode_return=episodes, truncated=False
        ),
    )
    log.append(
        "ranks",
        TABLES["ranks"].rows(
            3, world_rank=[2, 0, 1], role=["learner", "actor", "actor"], node="n1", device="cpu", threads=1
        ),
    )
    log.append(
        "events", TABLES["events"].rows(3, kind=["dropped_trajectory", "started", "dropped_trajectory"])
    )
    log.append("events", TABLES["events"].row(kind="dropped_trajectory", count=5))


def evaluation(update, returns, seed=12345, cut=False):
    return TABLES["evaluation"].rows(len(returns), update=update, seed=seed, episode_return=returns, cut=cut)


def fingerprints(update, hashes):
    return TABLES["learners"].rows(
        len(hashes), role_rank=np.arange(len(hashes))[::-1], update=update, weights_sha256=hashes
    )


def screen(summary):
    console = Console(file=io.StringIO(), width=100)
    console.print(render(summary))
    return console.file.getvalue()


def test_a_finished_run_is_described_in_full(run):
    run.write_provenance({"versions": {"numpy": "2.0"}})
    with open_log(run) as log:
        fill(log)
        log.append("evaluation", evaluation(5, [18.0, 18.0]))
        log.append("evaluation", evaluation(10, [10.0, 20.0], cut=[False, True]))
        log.append("learners", fingerprints(5, ["x", "y"]))
        log.append("learners", fingerprints(10, ["a" * 64, "a" * 64]))
    link_attempts(run.path)
    run.write_status("finished", exit_code=0, env_steps=1000, wall_s=25.0)
    summary = describe(run.path)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert (summary["status"], summary["exit_code"], summary["cause"]) == ("finished", 0, "")
    assert (summary["name"], summary["scheme"], summary["algorithm"]) == ("toy", "pipeline", "ppo")
    assert (summary["env"], summary["attempts"], summary["updates"]) == ("CartPole-v1", 1, 10)
    assert (summary["env_steps"], summary["wall_s"], summary["env_steps_per_s"]) == (1000, 25.0, 40.0)
    assert summary["lag"] == {"min": 0, "mean": 0.75, "max": 3}
    assert summary["training_return"]["n"] == 100
    assert summary["training_return"]["mean"] == np.arange(50, 150).mean()
    counted = {"n": 2, "seed": 12345, "env_steps": -1}
    assert summary["evaluation"] == counted | {"mean": 15.0, "std": 5.0, "cut": 1, "update": 10}
    assert summary["best_evaluation"] == counted | {"mean": 18.0, "std": 0.0, "cut": 0, "update": 5}
    assert summary["weights_sha256"] == ["a" * 64] * 2 and summary["weights_equal"] is True
    assert summary["events"] == {"dropped_trajectory": 7, "started": 1}
    assert [rank["role"] for rank in summary["ranks"]] == ["actor", "actor", "learner"]
    assert summary["versions"] == {"numpy": "2.0"}
    text = screen(summary)
    assert len(text.splitlines()) <= 40
    for part in (
        "toy  finished (exit code 0)",
        "1,000 of 1,000",
        "0 to 3 updates, mean 0.75",
        "15.00 ± 5.00",
        "18.00 ± 0.00 over 2 episodes, seed 12345, at update 5, of 2 evaluations",
    ):
        assert part in text
    for part in ("equal on all learners", "dropped_trajectory 7", "hpcrl describe", "curves.py"):
        assert part in text


def test_learners_that_diverged_are_shown_so(run):
    with open_log(run) as log:
        log.append("learners", fingerprints(3, ["a", "b"]))
    summary = describe(run.path)
    assert summary["weights_equal"] is False
    assert summary["weights_sha256"] == ["b", "a"]  # by role_rank
    assert "DIFFERENT ON THE LEARNERS" in screen(summary)


def test_a_running_run_shows_what_was_flushed(run):
    log = open_log(run)
    fill(log, updates=4)
    log.flush()
    summary = describe(run.path)
    assert summary["status"] == "running" and summary["exit_code"] is None
    assert (summary["env_steps"], summary["wall_s"]) == (400, 8.0)
    assert summary["evaluation"] is None and summary["weights_equal"] is None
    assert "toy  running\n" in screen(summary).replace(" \n", "\n")
    log.close()


def test_a_killed_run_is_described_from_its_result_file(run):
    with open_log(run) as log:
        fill(log, updates=4)
    run.write_status("running", env_steps=200, wall_s=4.0)
    run.close()
    summary = describe(run.path)
    assert summary["status"] == "killed"
    assert summary["env_steps"] == 400
    assert "its process ended without saying why" in screen(summary)


def test_attempts_add_their_wall_times(run):
    for attempt in (1, 2):
        path = run.path / f"attempts/{attempt:03d}.h5"
        with RunLog(path, config_json="{}", provenance={}, attempt=attempt) as log:
            fill(log, updates=3 * attempt)
    summary = describe(run.path)
    assert (summary["attempts"], summary["wall_s"], summary["updates"]) == (2, 18.0, 6)
    assert len(summary["ranks"]) == 3


def test_the_time_of_a_killed_attempt_counts_with_what_was_lost_of_it(run):
    """It came to update 10, after 20 s, and the next one went on from update 4."""
    log = open_log(run)
    fill(log, updates=10)
    log.flush()
    abandon(log._file)
    path = run.path / "attempts/002.h5"
    with RunLog(path, config_json="{}", provenance={}, attempt=2, first_update=4) as log:
        log.append("updates", TABLES["updates"].row(update=5, env_steps=500, time_s=3.0, applied=True))
    summary = describe(run.path)
    assert [(one["last_update"], one["wall_s"]) for one in summary["attempt_list"]] == [(4, 20.0), (5, 3.0)]
    assert summary["wall_s"] == 23.0


@pytest.mark.parametrize("status", ["stopped", "failed"])
def test_ends_before_the_budget_tell_their_cause(run, status):
    run.write_status(status, exit_code=75 if status == "stopped" else 3, cause="[rank 3] the time limit")
    text = screen(describe(run.path))
    assert f"toy  {status} (exit code" in text and "[rank 3] the time limit" in text


def test_a_run_without_any_row_describes_itself(run):
    open_log(run).close()
    summary = describe(run.path)
    assert (summary["env_steps"], summary["updates"], summary["env_steps_per_s"]) == (0, 0, None)
    assert summary["lag"] is None and summary["training_return"] is None and summary["ranks"] == []
    text = screen(summary)
    assert "no episode has ended" in text and "none recorded" in text


def test_a_run_that_was_never_started_describes_itself(tmp_path):
    (tmp_path / "config.json").write_text(config(tmp_path).to_json())
    summary = describe(tmp_path)
    assert (summary["status"], summary["attempts"]) == ("not started", 0)
    assert "toy  not started" in screen(summary)


@pytest.mark.parametrize("name", ["config.json", "provenance.json", "status.json"])
def test_lost_or_torn_files_are_no_error(run, name):
    with open_log(run) as log:
        fill(log)
    run.write_provenance({"versions": {}})
    (run.path / name).write_text('{"name": "to')
    assert describe(run.path)["updates"] == 10
    assert screen(describe(run.path))
    (run.path / name).unlink()
    assert describe(run.path)["updates"] == 10


def test_numbers_that_are_not_finite_are_not_reported(run):
    with open_log(run) as log:
        log.append("evaluation", evaluation(1, [math.nan, 1.0]))
        log.append("updates", TABLES["updates"].row(update=1, env_steps=5, applied=False))
    summary = describe(run.path)
    assert summary["evaluation"] is None
    json.dumps(summary, allow_nan=False)


def test_a_large_plan_still_fits_on_one_screen(run):
    with open_log(run) as log:
        world = np.arange(64)
        nodes = [f"node{rank}" for rank in world]
        log.append("ranks", TABLES["ranks"].rows(64, world_rank=world, role="worker", node=nodes, threads=2))
    text = screen(describe(run.path))
    assert "and 52 lines more" in text
    assert len(text.splitlines()) <= 40


def test_what_is_no_run_is_refused_with_what_was_expected(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    for path, words in ((tmp_path / "no", "does not exist"), (tmp_path / "empty", "holds no run")):
        with pytest.raises(ConfigError, match=f"{words}; expected a run directory, which has config.json"):
            describe(path)
    with pytest.raises(ConfigError, match="holds no run"):
        describe(tmp_path / "file.txt")


def test_files_of_a_run_name_the_run(run):
    open_log(run).close()
    link_attempts(run.path)
    for name in ("", "run.h5", "config.json", "attempts/001.h5"):
        assert find_run(run.path / name) == run.path


def test_attempts_are_listed_with_what_of_them_counts(run):
    """Attempt 1 was killed at update 6 after a checkpoint at 4; 2 was stopped at 7; 3 finished."""
    for attempt, first, last, end in ((1, 0, 6, None), (2, 4, 7, "stopped"), (3, 7, 9, "finished")):
        path = run.path / f"attempts/{attempt:03d}.h5"
        with RunLog(path, config_json="{}", provenance={}, attempt=attempt, first_update=first) as log:
            update = np.arange(first, last) + 1
            rows = TABLES["updates"].rows(
                len(update), update=update, env_steps=10 * update, time_s=update * 0.5, applied=True
            )
            log.append("updates", rows)
            if end:
                log.append("events", TABLES["events"].row(kind=end))
    for update in (7, 9):
        (run.path / "checkpoints" / f"{update:012d}").mkdir()
    run.write_status("finished", exit_code=0)
    summary = describe(run.path)
    keys = ("attempt", "first_update", "last_update", "env_steps", "end")
    assert [tuple(one[key] for key in keys) for one in summary["attempt_list"]] == [
        (1, 0, 4, 40, "killed"),
        (2, 4, 7, 70, "stopped"),
        (3, 7, 9, 90, "finished"),
    ]
    assert summary["checkpoints"] == [7, 9] and summary["updates"] == 9
    text = screen(summary)
    assert "from update" in text and "killed" in text and "update 7, update 9" in text


@pytest.mark.parametrize(("status", "offered"), [("stopped", True), ("failed", True), ("finished", False)])
def test_what_can_go_on_is_offered_to(run, status, offered):
    run.write_status(status, exit_code=1)
    assert (f"hpcrl run {run.path} --resume must" in describe(run.path)["next_commands"]) == offered
