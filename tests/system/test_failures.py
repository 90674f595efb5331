"""A rank that dies or fails ends the whole job at once, with one named cause and readable results."""

import os
import signal
import time

import numpy as np
import pytest

from hpcrl.algorithms import make_algorithm
from hpcrl.config import RunConfig
from hpcrl.envs import make_env_spec
from hpcrl.storage.files import read_json
from tests.system.support import FOREVER, TOY, assert_gone, run, start

BOUND_S = 10.0


def check_failed(ended, *names):
    """Exit code 3, one line of ours that holds all names, and a result file that can be read and agrees."""
    assert ended.code == 3, ended.stderr
    (line,) = ended.named_failures()
    for name in names:
        assert name in line
    summary = ended.describe()
    assert (summary["status"], summary["exit_code"]) == ("failed", 3)
    assert summary["cause"] == line.removeprefix("hpcrl: ")
    return summary


@pytest.mark.parametrize(
    ("role", "mpiexec"),
    [("actor", None), ("replay", None), ("learner", None), ("learner", 3)],
    ids=["actor", "replay", "learner", "learner under mpiexec"],
)
def test_a_killed_rank(tmp_path, role, mpiexec):
    with start(tmp_path, FOREVER, mpiexec=mpiexec) as running:
        running.until_updates(3)
        os.kill(running.pids()[f"{role} 0"], signal.SIGKILL)
        killed = time.monotonic()
        ended = running.wait(BOUND_S)
        assert_gone(running, within_s=BOUND_S - (time.monotonic() - killed))
    summary = check_failed(ended, f"{role} 0 (rank ", "was killed by SIGKILL", "last progress: ")
    rows = ended.table("updates")
    assert summary["updates"] == len(rows) >= 3
    np.testing.assert_array_equal(rows["update"], np.arange(1, len(rows) + 1))
    lag = ended.table("lag")
    assert summary["env_steps"] == int(lag["env_steps"][lag["update"] <= len(rows)].sum())


def test_a_killed_rank_of_the_synchronous_scheme(tmp_path):
    with start(tmp_path, FOREVER, "scheme=synchronous", "ranks.workers=2") as running:
        running.until_updates(3)
        os.kill(running.pids()["worker 1"], signal.SIGKILL)
        ended = running.wait(BOUND_S)
        assert_gone(running)
    check_failed(ended, "worker 1 (rank 1 on", "was killed by SIGKILL")


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("exit", "ended without a word, exit status 9"),
        ("raise", "failed: RuntimeError: the failing environment fails, as it was told to"),
    ],
)
def test_an_environment_that_takes_its_rank_along(tmp_path, fault, cause):
    settings = f'env.kwargs={{"fault": "{fault}", "at_step": 20, "index": 5}}'
    ended = run(tmp_path, FOREVER, "env.id=failing", "ranks.actors=2", settings)
    check_failed(ended, "actor 1 (rank 3 on", cause)
    assert ("Traceback" in ended.stderr) == (fault == "raise")


def test_an_environment_that_cannot_be_made(tmp_path):
    tmp_path.joinpath("mine.py").write_text("def make():\n    raise OSError('no license server')\n")
    ended = run(tmp_path, "env.engine=custom", "env.id=mine:make")
    assert ended.code == 3
    (line,) = ended.named_failures()
    assert "actor 0 (rank 2 on" in line and "OSError: no license server" in line
    assert ended.run_dir is None


def test_a_mistake_that_shows_after_mpi_has_started_is_a_wrong_configuration(tmp_path):
    ended = run(tmp_path, "env.id=chein")
    assert ended.code == 2
    (line,) = ended.named_failures()
    assert "env.id='chein'" in line and "did you mean chain?" in line
    assert "Traceback" not in ended.stderr
    assert ended.run_dir is None


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_rewards_that_are_not_finite_are_never_learned_from(tmp_path, form):
    """Only the second actor's are; no learner applies the update, and the run ends by itself."""
    settings = (
        'env.kwargs={"fault": "nan", "at_step": 0, "index": 5}',
        *("env.id=failing", "ranks.actors=2", "ranks.learners=2"),
        "deterministic=true",  # one trajectory of each actor in every batch
        f"reduction.form={form}",
    )
    ended = run(tmp_path, FOREVER, *settings)
    assert ended.code == 4, ended.stderr
    assert "not finite in 3 updates in a row" in ended.stdout
    summary = ended.describe()
    assert (summary["status"], summary["exit_code"]) == ("failed", 4)
    assert "not finite in 3 updates in a row (algorithm.max_nonfinite_updates)" in summary["cause"]
    assert summary["events"]["nonfinite_update"] == 6
    assert ended.table("updates")["applied"].tolist() == [False] * 3
    assert ended.run_dir is not None
    config = RunConfig.parse(read_json(ended.run_dir / "config.json") or {})
    untouched = make_algorithm(config, make_env_spec(config.env)).parameters.sha256()
    assert summary["weights_sha256"] == [untouched, untouched]
    dumped = sorted(path.name for path in (ended.run_dir / "logs").glob("*.h5"))
    assert dumped == [f"nonfinite-update{n:06d}-learner{r}.h5" for n in (1, 2, 3) for r in (0, 1)]
    assert TOY["algorithm"]["unroll_length"] == len(rewards(ended, dumped[0]))
    bad = [np.isnan(rewards(ended, name)).any() for name in dumped[:2]]
    assert sorted(bad) == [False, True]


def test_one_actor_whose_gradients_are_never_finite_ends_the_run(tmp_path):
    """Though those of the other are applied in between; and few batches are kept, however many are refused."""
    settings = (
        'env.kwargs={"fault": "nan", "at_step": 0, "index": 5}',
        *("env.id=failing", "ranks.actors=2", "deterministic=true", "algorithm.max_nonfinite_updates=14"),
    )
    recipe = TOY | {"algorithm": {"name": "a3c", "unroll_length": 8}}
    ended = run(tmp_path, FOREVER, *settings, recipe=recipe)
    assert ended.code == 4, ended.stderr
    summary, applied = ended.describe(), ended.table("updates")["applied"]
    assert "not finite in 14 updates in a row of those from actor 1 (algorithm.max" in summary["cause"]
    assert summary["events"]["nonfinite_update"] == (~applied).sum() == 14 and applied.sum() >= 13
    assert len(list((ended.run_dir / "logs").glob("nonfinite-*.h5"))) == 10


def rewards(ended, name):
    import h5py

    with h5py.File(ended.run_dir / "logs" / name) as file:
        return np.asarray(file["reward"])
