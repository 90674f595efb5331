"""Runs that never were: tables as a result file has them, made in memory."""

from pathlib import Path

import numpy as np

from hpcrl.config import RunConfig
from hpcrl.diagnose.view import View
from hpcrl.storage.result_file import with_attempt
from hpcrl.storage.schema import TABLES

UPDATES, EPISODES = 100, 1500


def make_config(**sections):
    """A pipeline of one actor, one queue and one learner; or as the sections say."""
    values = {
        "name": "made",
        "env": {"id": "CartPole-v1", "engine": "envpool", "num_envs": 16},
        "algorithm": {"name": "impala", "unroll_length": 32},
        **sections,
    }
    return RunConfig.parse(values).to_dict()


SYNCHRONOUS = {"scheme": "synchronous", "algorithm": {"name": "ppo"}, "ranks": {"workers": 2}}
REPLAYED = {
    "algorithm": {"name": "dqn"},
    "ranks": {"actors": 2},
}
ACTORS = {"ranks": {"actors": 4}}


def rows(table, count=1, **columns):
    """Rows of a table in attempt 1, with the column `attempt`."""
    out = np.zeros(count, with_attempt(TABLES[table]))
    if not count:
        return out
    made = TABLES[table].rows(count, **columns)
    out["attempt"] = 1
    for name in made.dtype.names:
        out[name] = made[name]
    return out


def updates(count=UPDATES, **columns):
    """Of a run that is well; `columns` replace what it has."""
    number = np.arange(1, count + 1)
    well = {
        "update": number,
        "env_steps": 485 * number,
        "time_s": 0.1 * number,
        "entropy": np.linspace(0.69, 0.5, count),
        "log_rho_p90": 0.1,
        "clip_fraction": 0.1,
        "explained_variance": np.linspace(0.0, 0.8, count),
        "lag_min": 1,
        "lag_mean": 1.0,
        "lag_max": 1,
        "valid_fraction": 0.97,  # 15 reset steps an update
        "applied": True,
    }
    return rows("updates", count, **{**well, **columns})


def episodes(count=EPISODES, actors=1, **columns):
    actor = np.arange(count) % actors
    well = {
        "time_s": np.linspace(0.1, 10.0, count),
        "actor": actor,
        "env_index": 4 * actor + np.arange(count) // actors % 4,
        "episode_return": 30.0 + np.arange(count) // actors % 7,
        "episode_length": 30,
        "truncated": False,
    }
    return rows("episodes", count, **{**well, **columns})


def trajectories(count=UPDATES, actors=1, shares=None):
    """Of which each actor gives as many, or as `shares` say."""
    weights = np.array(shares if shares else [1.0] * actors)
    actor = np.repeat(np.arange(len(weights)), np.round(count * weights / weights.sum()).astype(int))
    return rows(
        "trajectories",
        len(actor),
        update=1,
        collected_in=1,
        actor=actor,
        grant=np.arange(len(actor)),
        env_steps=485,
    )


def events(kind, count=1, **columns):
    return rows("events", count, kind=kind, **columns)


def seats(*roles, one_rank=False, node="n1", cores="0-63"):
    """Table `ranks`: each of ("actor", "learner", ...) on a rank of its own, or all on one."""
    names = list(roles)
    index = [names[:place].count(role) for place, role in enumerate(names)]
    world = 0 if one_rank else np.arange(len(names))
    return rows(
        "ranks", len(names), world_rank=world, role=names, role_rank=index, node=node, cores=cores, threads=1
    )


def timers(times, wall_s=10.0, time_s=10.0):
    """Table `timers` at one moment, of {("actor", 0): {hop: own seconds}}; a role waits for the rest of the wall."""
    parts = []
    for (role, index), hops in times.items():
        rest = {"role.wait": wall_s - sum(hops.values())} if sum(hops.values()) < wall_s else {}
        for hop, seconds in {**hops, **rest}.items():
            parts.append(
                rows(
                    "timers",
                    time_s=time_s,
                    role=role,
                    role_rank=index,
                    hop=hop,
                    seconds=seconds,
                    own_s=seconds,
                    count=1,
                    age_s=wall_s,
                )
            )
    return np.concatenate(parts)


def make_view(
    config=None, status="finished", run="runs/made", shares=(), heads=(), initial=None, damage="", **tables
):
    """What the rules see of a run that is well, but for the tables given."""
    config = make_config() if config is None else config
    known = {
        "updates": updates(),
        "episodes": episodes(),
        "trajectories": trajectories(),
        "ranks": seats("replay", "actor", "learner"),
    }
    every = {name: rows(name, 0) for name in TABLES} | known | tables
    first = every["updates"][:3] if initial is None else initial
    said = status if isinstance(status, dict) else {"status": status, "exit_code": 0, "cause": ""}
    return View(Path(run), said, config, 1, every, first, list(shares), list(heads), damage)
