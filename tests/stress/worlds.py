"""mpiexec -n 12 python -m mpi4py -m tests.stress.worlds RUNS SEED: random runs, one after another, on the same ranks.

Each run has 1 to 4 ranks of each role, on made-up nodes, with slow and fast actors, and ends at its budget or by a
signal that comes to a random rank at a random time. After each, what was trained is compared with what was stepped.
"""

import contextlib
import faulthandler
import io
import random
import sys
import tempfile
import threading
from pathlib import Path

from mpi4py import MPI

import hpcrl.comm.world
from hpcrl.comm.signals import SignalFlag
from hpcrl.config import ExitCode, RunConfig
from hpcrl.launch.board import Board
from hpcrl.launch.rank import play
from hpcrl.storage import read_table
from tests.stress.parts import NOTES

LIMIT_S = 100
T = 4


def draw(rng, folder):
    """One run: (configuration, seconds per env_step of each rank, node of each rank, rank and time of a signal)."""
    actors, learners = rng.randint(1, 4), rng.randint(1, 4)
    batch = rng.choice([None, rng.randint(1, 6)])
    replay = rng.randint(1, min(4, actors, batch or actors))
    publish_every = rng.choice([1, 1, 1, 2])
    max_lag = rng.randint(publish_every - 1, 3)
    deterministic = max_lag <= 1 and publish_every == 1 and rng.random() < 0.3
    num_envs = rng.randint(actors, 3 * actors)
    per_update = T * num_envs * (batch or actors) // actors
    config = RunConfig.parse(
        {
            "name": "stress",
            "seed": rng.randrange(2**32),
            "deterministic": deterministic,
            "env": {"id": "tests.stress.parts:make", "engine": "custom", "num_envs": num_envs},
            "algorithm": {
                "name": "tests.stress.parts:Recorder",
                "unroll_length": T,
                "batch_trajectories": batch,
            },
            "ranks": {"actors": actors, "replay": replay, "learners": learners},
            "lag": {
                "max_lag": max_lag,
                "publish_every_updates": publish_every,
                "overdue": "wait" if deterministic else rng.choice(["wait", "wait", "drop"]),
            },
            "budget": {"env_steps": per_update * rng.randint(1, 25)},
            "evaluation": {"episodes": 0},
            "storage": {"run_dir": str(folder)},
            "comm": {
                "slots": rng.randint(2, 4),
                "transport": rng.choice(["auto", "auto", "messages"]),
                "chunk_bytes": rng.choice([1024, 1 << 30]),
                "drain_timeout_s": 2 * LIMIT_S,
                "checksum": rng.random() < 0.3,
                "debug": rng.random() < 0.5,
            },
        }
    )
    size = config.world_size
    pace = [rng.choice([0.0, 0.0, 0.001, 0.01]) for _ in range(size)]
    names = [rng.choice("abc"[: rng.randint(1, 3)]) for _ in range(size)]
    # often before the first batch is full, sometimes after the end
    signal = (rng.randrange(size), rng.choice([0.0, 0.05, 0.3, 1.0, 3.0])) if rng.random() < 0.6 else None
    return config, pace, names, signal


def check(config, code, columns, folder):
    """Nothing lost, nothing twice, counts equal."""
    updates = read_table(folder, "updates")
    edges = read_table(folder, "edges")
    trained = sorted(columns)
    assert len(trained) == len(set(trained))
    before = 0
    for update, env_steps in enumerate(updates["env_steps"]):
        assert T * sum(column[0] == update for column in trained) == env_steps - before
        before = env_steps
    assert T * len(trained) == before
    dropped = config.lag.overdue == "drop"
    by_env = {}
    for _, who, first, last in sorted(trained, key=lambda column: column[2]):
        assert first == by_env.get(who, 0) or (dropped and first > by_env.get(who, 0)), (who, first)
        by_env[who] = last
    sent = int(edges["messages"][edges["stream"] == b"trajectory"].sum())
    assert sent >= len(updates) * config.batch_trajectories
    if code == ExitCode.FINISHED:
        assert int(updates["env_steps"][-1]) >= config.budget.env_steps


def one_run(rng, index, folder):
    """Draw, play, check; collective over the world. Returns the exit code and how the run was made."""
    config, pace, names, signal = draw(rng, folder)
    world = MPI.COMM_WORLD
    inside = world.rank < config.world_size
    ranks = world.Split(0 if inside else 1, world.rank)
    code, columns = 0, []
    if inside:
        NOTES.trained.clear()
        NOTES.seconds_per_step = pace[ranks.rank]
        hpcrl.comm.world.node_name = lambda comm: names[comm.rank]
        flag = SignalFlag()
        if signal is not None and signal[0] == ranks.rank:
            threading.Timer(signal[1], lambda: setattr(flag, "received", "SIGTERM")).start()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            environment = {"threads_per_rank": 1, "allocation_end": None}
            code = play(ranks, config, environment, Board(), flag)
        assert code in (ExitCode.FINISHED, ExitCode.RESUME_ME), code
        assert not ranks.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        columns = [column for some in ranks.allgather(NOTES.trained) for column in some]
        if ranks.rank == 0:
            check(config, code, columns, folder)
    ranks.Free()
    how = (
        f"run {index}: ranks {config.ranks.to_dict()}, nodes {''.join(names)}, signal {signal}, {config.comm}"
    )
    return code, how, len(columns)


def main():
    runs, seed = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    codes = {}
    total = 0
    with tempfile.TemporaryDirectory(prefix="hpcrl-stress-") as own:
        folder = Path(MPI.COMM_WORLD.bcast(own))
        for index in range(runs):
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            code, how, columns = one_run(rng, index, folder / str(index))
            faulthandler.cancel_dump_traceback_later()
            MPI.COMM_WORLD.Barrier()
            codes[int(code)] = codes.get(int(code), 0) + 1
            total += columns
            if MPI.COMM_WORLD.rank == 0 and "-v" in sys.argv:
                sys.stdout.write(f"{how}: code {int(code)}, {columns} columns\n")
                sys.stdout.flush()
        MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        counts = ", ".join(f"{count} with code {code}" for code, count in sorted(codes.items()))
        sys.stdout.write(f"{runs} runs ended, {counts}; {total} columns trained, none lost, none twice\n")


if __name__ == "__main__":
    main()
