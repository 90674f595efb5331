"""Whole runs inside a test: attempts of one run, stopped at a given update as if by a signal."""

import contextlib
import json
import shutil
import tempfile
import threading
from pathlib import Path

from mpi4py import MPI

from hpcrl.comm.signals import SignalFlag
from hpcrl.config import RunConfig
from hpcrl.launch import board
from hpcrl.launch.rank import play
from hpcrl.storage.summary import describe
from tests.mpi.support import come_together

ENVIRONMENT = {"threads_per_rank": 1, "allocation_end": None}
PPO = {"name": "ppo", "unroll_length": 8, "epochs": 2, "num_minibatches": 2, "anneal_learning_rate": True}
IMPALA = {"name": "impala", "unroll_length": 8, "anneal_learning_rate": True}
CHAIN = {"id": "chain", "engine": "toy", "num_envs": 8}
"""What is seen depends on what is done: the state of every environment counts."""
BANDIT = {"id": "bandit", "engine": "toy", "num_envs": 8, "kwargs": {"noise_std": 1.0}}
"""Rewards are drawn from the environments' own random streams."""

COUNTING = {"id": "counting", "engine": "toy", "num_envs": 8, "kwargs": {"tagged": True}}
"""Rewards are the number of the env_step within the episode, which ends in either way."""
NORMALIZED = {"env": COUNTING, "model": {"hidden_sizes": [8], "normalize_observations": True}}
"""With `normalize_returns` beside it."""
RECURRENT = {"hidden_sizes": [8], "recurrent": "lstm", "recurrent_size": 4, "shared_torso": False}
"""A model."""

DQN = {"name": "dqn", "unroll_length": 8, "batch_size": 5, "n_step": 2, "epsilon_env_steps": 300}
REPLAY = {"capacity": 300, "min_size": 80, "samples_per_insert": 0.5, "sampling": "prioritized"}
"""Some ten updates in 200 env_steps; the memory is full before."""

SLOW = CHAIN | {"kwargs": {"seconds_per_step": 0.003}}
"""At most cuts a trajectory is under way."""


def shared_out(*variants):
    """All on 4 ranks, which are two of a kind beside one of each; of the others one rank runs every other one.

    The rest is for 2 and 3 ranks: whether roles share a process is one thing, what happens to the run another.
    """
    size = MPI.COMM_WORLD.size
    return variants if size == 4 else variants[int(size > 1) :: 2]


def layout(size):
    """Ranks of a pipeline in a world of this size, which is not 2."""
    return {
        1: {"actors": 1, "replay": 1, "learners": 1},
        3: {"actors": 1, "replay": 1, "learners": 1},
        4: {"actors": 2, "replay": 1, "learners": 1},
    }[size]


def synchronous(size, **sections):
    chosen = {"scheme": "synchronous", "algorithm": PPO, "ranks": {"workers": size}}
    return values(size, **(chosen | sections))


def pipeline(size, max_lag=1, **sections):
    chosen = {"deterministic": True, "algorithm": IMPALA, "ranks": layout(size), "lag": {"max_lag": max_lag}}
    return values(size, **(chosen | sections))


def replayed(size, **sections):
    """A pipeline with a replay memory; actors and learners take turns."""
    chosen = {"algorithm": DQN, "replay": REPLAY, "budget": {"env_steps": 500}}
    return pipeline(size, **(chosen | sections))


def values(size, **sections):
    common = {
        "name": "toy",
        "env": CHAIN,
        "model": {"hidden_sizes": [8]},
        "budget": {"env_steps": 900},
        "evaluation": {"episodes": 0},
        "checkpoint": {"every_seconds": None},
    }
    return common | sections


class Board(board.Board):
    """Of no supervisor; sets the flag when so many updates or more are reported, or that very text is."""

    def __init__(self, flag, stop_at):
        super().__init__()
        self._flag, self._stop_at = flag, stop_at
        self.reports = []

    def report(self, progress):
        self.reports.append(progress)
        kind, _, rest = progress.partition(" ")
        number = int(rest.partition(",")[0]) if kind == "update" else -1
        if progress == self._stop_at or (isinstance(self._stop_at, int) and number >= self._stop_at >= 0):
            self._flag.received = "SIGUSR1"


def attempt(comm, run_dir, settings, *, resume="never", stop_at=None, stop_after_s=None):
    """One attempt in this process, on every rank of `comm`; its exit code."""
    config = RunConfig.parse(settings | {"storage": {"run_dir": str(run_dir), "flush_interval_s": 0.1}})
    flag = SignalFlag()
    flag.received = "SIGUSR1" if stop_at == 0 else None
    board = Board(flag, stop_at)
    timer = threading.Timer(stop_after_s or 0, setattr, (flag, "received", "SIGUSR1"))
    if stop_after_s is not None:
        timer.start()
    code = play(comm, config, ENVIRONMENT, board, flag, resume)
    timer.cancel()
    come_together(comm)
    return code


def weights(comm, run_dir):
    """The one weights hash of a run's learners."""
    summary = on_root(comm, describe, run_dir)
    assert summary["weights_equal"], summary["weights_sha256"]
    return summary["weights_sha256"][0]


@contextlib.contextmanager
def folder(comm):
    """An empty folder, the same on all ranks; gone afterwards."""
    path = comm.bcast(tempfile.mkdtemp(prefix="hpcrl-test-") if comm.rank == 0 else None, 0)
    yield Path(path)
    come_together(comm)
    if comm.rank == 0:
        shutil.rmtree(path)
    come_together(comm)


@contextlib.contextmanager
def half(comm):
    """A world that can hold a pipeline: all ranks, or where there are two, each by itself."""
    world = comm.Split(comm.rank if comm.size == 2 else 0, comm.rank)
    yield world
    world.Free()


def on_root(comm, function, *arguments):
    """Call the function on rank 0 alone, while the others wait; its result on all ranks."""
    result = function(*arguments) if comm.rank == 0 else None
    come_together(comm)
    return comm.bcast(result, 0)


_whole: dict[str, str] = {}


def weights_of_whole(comm, settings):
    """Weights of the run that nothing happens to; each is run once for all tests."""
    key = json.dumps(settings, sort_keys=True) + str(comm.size)
    if key not in _whole:
        with folder(comm) as path:
            assert attempt(comm, path / "whole", settings) == 0
            _whole[key] = weights(comm, path / "whole")
    return _whole[key]


def cut_run(comm, run_dir, settings, stops):
    """Attempts that are stopped at these updates, then one to the end; exit codes."""
    codes = [attempt(comm, run_dir, settings, resume="if-exists", stop_at=stop) for stop in stops]
    return [*codes, attempt(comm, run_dir, settings, resume="must")]


def numbers_of_sets(comm, run_dir):
    """Updates of the sets there are, ascending; the same on all ranks."""
    names = on_root(comm, lambda: [path.name for path in (run_dir / "checkpoints").iterdir()])
    return sorted(int(name) for name in names if name.isdigit())
