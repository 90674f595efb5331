"""Runs with made-up rows."""

import numpy as np

from hpcrl.config import RunConfig
from hpcrl.storage import TABLES, RunDirectory, RunLog

BUDGET = 1000
BEGAN = "2026-01-02T03:04:05.500+00:00"
BEGAN_S = 1767323045.5


def config(run_dir):
    values = {
        "name": "toy",
        "env": {"id": "x"},
        "algorithm": {"name": "impala"},
        "scheme": "pipeline",
        "budget": {"env_steps": BUDGET},
        "storage": {"run_dir": str(run_dir)},
    }
    return RunConfig.parse(values)


def begin(run_dir):
    """A run directory that is locked, as of a run that goes on."""
    return RunDirectory.create(config(run_dir))


def open_log(run, attempt=1, first_update=0, provenance=None):
    return RunLog(
        run / f"attempts/{attempt:03d}.h5",
        config_json=config(run).to_json(),
        provenance=provenance or {},
        attempt=attempt,
        first_update=first_update,
    )


def updates(first, last, **values):
    """Rows of updates `first` to `last`: each 10 env_steps and half a second, lags 0 to 2."""
    update = np.arange(first, last + 1)
    given = {
        "env_steps": 10 * update,
        "time_s": 0.5 * (update - first + 1),
        "applied": True,
        "policy_loss": update / 8,
        "lag_min": 0,
        "lag_mean": 0.5,
        "lag_max": 2,
    }
    return TABLES["updates"].rows(len(update), update=update, **given | values)


def episodes(env_steps, returns, **values):
    given = {"env_steps": env_steps, "time_s": 0.5, "episode_length": 5, "truncated": False}
    return TABLES["episodes"].rows(len(returns), episode_return=returns, **given | values)


def clock(text=BEGAN):
    return TABLES["events"].row(kind="clock", time_s=0.0, text=text)
