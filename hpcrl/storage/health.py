"""Whether a run is well: actors whose episodes differ from their peers', noise of the gradient."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcrl.storage.schema import Rows

WINDOW, FEWEST_EPISODES, FEWEST_ACTORS = 50, 30, 3
"""Last episodes of an actor that are looked at; fewer say nothing of it; of two actors nobody knows which is odd."""
LARGEST_SCORE = 8.0
"""Standard errors from the peers. Far out, as all actors are looked at again and again."""
MAD_TO_STD = 1.4826
"""Of a normal distribution."""
NOISE_UPDATES = 100
"""Over which the two estimates behind a noise scale are averaged."""


class OddActor(NamedTuple):
    """One whose returns are not like the others'."""

    actor: int
    """role_rank"""
    mean: float
    """of its last episodes' returns"""
    peers: float
    """median of the others' means"""
    score: float
    """difference over its standard error"""
    episodes: int

    def __str__(self) -> str:
        return (
            f"actor {self.actor}: mean return {self.mean:.4g} over {self.episodes} episodes, its peers have "
            f"{self.peers:.4g} ({self.score:+.1f} standard errors)"
        )


def odd_actors(returns: Mapping[int, Sequence[float]]) -> list[OddActor]:
    """Actors whose mean return is far from the median of the others' means, by a robust z-score. Pure.

    The error is that of the means, from the larger one of the actor's and the typical standard deviation, and the
    spread of the others' means: actors with tasks of their own, each another one, are not odd. Not finite means are.

    Args:
        returns: actor -> returns of its last episodes; those with fewer than FEWEST_EPISODES are left out.
    """
    chosen = {actor: np.asarray(values, np.float64) for actor, values in returns.items()}
    chosen = {actor: values for actor, values in sorted(chosen.items()) if len(values) >= FEWEST_EPISODES}
    if len(chosen) < FEWEST_ACTORS:
        return []
    means = {actor: float(values.mean()) for actor, values in chosen.items()}
    with np.errstate(invalid="ignore"):
        deviations = {actor: float(values.std()) for actor, values in chosen.items()}
    typical = float(np.median([one for one in deviations.values() if math.isfinite(one)] or [0.0]))
    found = []
    for actor, mean in means.items():
        others = np.array([other for name, other in means.items() if name != actor and math.isfinite(other)])
        if len(others) < FEWEST_ACTORS - 1:
            continue
        middle = float(np.median(others))
        spread = MAD_TO_STD * float(np.median(np.abs(others - middle)))
        deviation = max(deviations[actor], typical)
        count = len(chosen[actor])
        # the variance of a median is about pi / 2 times that of a mean
        error = math.hypot(deviation * math.sqrt(1 / count + math.pi / 2 / (count * len(others))), spread)
        difference = mean - middle
        if math.isfinite(mean) and abs(difference) <= 1e-6 * max(abs(mean), abs(middle)):
            continue
        score = difference / error if error > 0 else math.copysign(math.inf, difference)
        if not abs(score) <= LARGEST_SCORE:
            found.append(OddActor(actor, mean, middle, score, count))
    return found


class ActorWatch:
    """Looks at the episodes of a run as they come, and tells of each odd actor once."""

    def __init__(self) -> None:
        self._returns: dict[int, deque[float]] = {}
        self._told: set[int] = set()
        self._new = 0

    def add(self, episodes: Rows) -> list[OddActor]:
        """Take in rows of the table `episodes`; the odd actors not told of yet, now and then."""
        for actor, value in zip(episodes["actor"].tolist(), episodes["episode_return"].tolist(), strict=True):
            self._returns.setdefault(actor, deque(maxlen=WINDOW)).append(value)
        self._new += len(episodes)
        if self._new < FEWEST_EPISODES * len(self._returns):
            return []
        self._new = 0
        found = [one for one in odd_actors(self._returns) if one.actor not in self._told]
        self._told |= {one.actor for one in found}
        return found


def last_returns(episodes: Rows) -> dict[int, Sequence[float]]:
    """The last WINDOW returns of each actor of the last attempt, from the table `episodes` with its attempts."""
    if not len(episodes):
        return {}
    last = episodes[episodes["attempt"] == episodes["attempt"][-1]]
    return {
        int(actor): last["episode_return"][last["actor"] == actor][-WINDOW:].tolist()
        for actor in np.unique(last["actor"])
    }


def noise_scale(updates: Rows) -> float | None:
    """Gradient noise scale in env_steps, of the last updates of the table `updates`; None where it was not to be seen.

    Mean grad_variance over mean grad_square: both scatter too much to be divided one by one.
    """
    last = updates[-NOISE_UPDATES:]
    last = last[np.isfinite(last["grad_square"]) & np.isfinite(last["grad_variance"])]
    square = float(last["grad_square"].mean()) if len(last) else math.nan
    return float(last["grad_variance"].mean()) / square if square > 0 else None
