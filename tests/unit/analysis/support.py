"""Runs as the writer leaves them, and scripts run where neither MPI nor torch can be imported."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from hpcrl.config import RunConfig
from hpcrl.storage import TABLES, RunDirectory, RunLog

ANALYSIS = Path(__file__).parents[3] / "analysis"

# Stands in front of scripts: importing MPI or torch raises, as on a laptop without them. Each line of standard input
# is the arguments of one script, separated by tabs; the exit code of each is printed behind its output.
POISON = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mpi4py", "torch", "gymnasium", "envpool", "submitit", "numba"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
if len(sys.argv) > 1:
    sys.argv = sys.argv[1:]
    sys.path.insert(0, sys.argv[0].rpartition("/")[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    for line in sys.stdin.read().splitlines():
        sys.argv = line.split("\\t")
        sys.path.insert(0, sys.argv[0].rpartition("/")[0])
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            print("exit", end.code, flush=True)
"""


def run_scripts(*commands):
    """Each command: name of a script, then its arguments. One process runs all; its (return code, output, errors)."""
    lines = "\n".join("\t".join([str(ANALYSIS / command[0]), *map(str, command[1:])]) for command in commands)
    done = subprocess.run(
        [sys.executable, "-c", POISON], input=lines, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def make_run(
    folder,
    *,
    seed=0,
    returns=(1.0, 2.0, 3.0, 4.0),
    env="CartPole-v1",
    algorithm="ppo",
    settings=None,
    actors=2,
    attempts=1,
    evaluation=(),
    status=("finished", 0),
    lag=(0, 1),
    lost=0,
    provenance=None,
):
    """A run of 10 updates of 100 env_steps, 1 s each, per attempt; its path.

    Half of each update's env_steps have each of the two lags. `returns` end evenly over the updates. `lost`: updates at
    the end of the first attempt that the second does again.
    """
    config = RunConfig.parse(
        {
            "name": "toy",
            "seed": seed,
            "scheme": "pipeline",
            "env": {"id": env},
            "algorithm": {"name": algorithm},
            "ranks": {"actors": actors},
            "storage": {"runs_dir": str(folder)},
            **(settings or {}),
        }
    )
    with RunDirectory.create(config) as run:
        run.write_provenance(provenance or {})
        for attempt in range(1, attempts + 1):
            path = run.path / f"attempts/{attempt:03d}.h5"
            first = 10 * (attempt - 1) - lost * (attempt > 1)
            with RunLog(
                path,
                config_json=config.to_json(),
                provenance=provenance or {},
                attempt=attempt,
                first_update=first if attempt > 1 else None,
            ) as log:
                _write(log, first, np.asarray(returns, float), lag, actors)
                if evaluation and attempt == attempts:
                    rows = {
                        "update": first + 10,
                        "env_steps": 100 * (first + 10),
                        "episode_return": evaluation,
                    }
                    log.append("evaluation", TABLES["evaluation"].rows(len(evaluation), cut=False, **rows))
        if status:
            run.write_status(status[0], exit_code=status[1], env_steps=100 * (first + 10))
    return run.path


def _write(log, first, returns, lag, actors):
    update = first + np.arange(1, 11)
    log.append(
        "updates",
        TABLES["updates"].rows(
            10,
            update=update,
            env_steps=100 * update,
            time_s=np.arange(1.0, 11.0),
            lag_mean=np.mean(lag),
            lag_max=max(lag),
            log_rho_p90=0.1 * np.mean(lag),
            applied=True,
        ),
    )
    two = np.repeat(update, 2)
    log.append("lag", TABLES["lag"].rows(20, update=two, lag=np.tile(lag, 10), env_steps=50))
    count = len(returns)
    if count:
        place = np.ceil(np.arange(1, count + 1) * 10 / count).astype(int)
        log.append(
            "episodes",
            TABLES["episodes"].rows(
                count,
                env_steps=100 * (first + place),
                time_s=place.astype(float),
                episode_return=returns,
                parameter_version=first + place,
                truncated=False,
            ),
        )
    roles = ["replay", "learner", *["actor"] * actors]
    for world_rank, role in enumerate(roles):
        role_rank = max(world_rank - 2, 0)
        row = {"world_rank": world_rank, "role": role, "role_rank": role_rank, "node": f"n{world_rank // 2}"}
        log.append(
            "ranks", TABLES["ranks"].row(**row, cores=f"{2 * (world_rank % 2)}-{2 * (world_rank % 2) + 1}")
        )
    hops = [("learner", 0, "algorithm.update", 4.0), ("learner", 0, "reducer.mean_gradients", 1.0)]
    hops += [("learner", 0, "batch.wait", 2.0)]
    hops += [("actor", rank, "env.recv", 5.0 + rank) for rank in range(actors)]
    for role, rank, hop, seconds in hops:
        row = {"role": role, "role_rank": rank, "hop": hop, "seconds": seconds, "count": 10}
        log.append("timers", TABLES["timers"].row(time_s=10.0, **row))
    for source in range(2, 2 + actors):
        row = {"stream": "trajectory", "source": source, "dest": 0, "messages": 10, "bytes": 2_000_000}
        log.append("edges", TABLES["edges"].row(time_s=10.0, **row, wait_s=0.5))
    log.append("events", TABLES["events"].row(kind="started", time_s=0.0))
