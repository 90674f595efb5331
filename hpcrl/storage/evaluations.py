"""What the evaluations of a run came to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.storage.schema import Rows


def evaluations(rows: Rows) -> list[dict[str, Any]]:
    """One per update that was evaluated, in order, of rows of table `evaluation`. Pure.

    mean, std and n of the raw returns; seed; cut (episodes); update; env_steps. One that was made again by a later
    attempt counts once, as that found it; one without a finite mean is left out.
    """
    found = []
    for update in np.unique(rows["update"]):
        here = rows[rows["update"] == update]
        here = here[here["attempt"] == here["attempt"].max()]
        values = moments(here["episode_return"])
        if values is not None:
            last = here[-1]
            said = {"seed": int(last["seed"]), "cut": int(here["cut"].sum())}
            found.append(values | said | {"update": int(update), "env_steps": int(last["env_steps"])})
    return found


def best_evaluation(found: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The one of the highest mean, of equal ones the last; None without any. Pure."""
    return max(found, key=lambda one: (one["mean"], one["update"]), default=None)


def moments(values: npt.NDArray[np.float64]) -> dict[str, Any] | None:
    """Mean and standard deviation (over n, not n - 1); None without a finite mean."""
    mean = float(values.mean()) if len(values) else math.nan
    if not math.isfinite(mean):
        return None
    return {"mean": mean, "std": float(values.std()), "n": len(values)}
