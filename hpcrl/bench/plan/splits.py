"""How ranks can be divided into roles. Pure."""

from __future__ import annotations

from hpcrl.comm.ranks import resize
from hpcrl.config import ConfigError, OffPolicyConfig, RunConfig

_FEW = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Replay ranks, and learners, that are tried."""


def splits(config: RunConfig, num_ranks: int) -> list[RunConfig]:
    """The run on `num_ranks` ranks, divided in every way that is tried and that it allows.

    Raises ConfigError that names the smallest world where there is none.
    """
    if num_ranks == 1 or config.scheme == "synchronous":
        try:
            return [resize(config, num_ranks)]
        except ConfigError as error:
            raise ConfigError(f"{num_ranks} ranks are too many for this recipe: {error}") from error
    found, why = [], ""
    for learners in _FEW:
        for replay in _FEW:
            actors = num_ranks - learners - replay
            if actors < replay or learners > _positions(config, actors):
                continue
            ranks = config.ranks.to_dict() | {"actors": actors, "replay": replay, "learners": learners}
            try:
                found.append(config.parse(config.to_dict() | {"ranks": ranks}))
            except ConfigError as error:
                why = why or str(error)
    if not found:
        raise ConfigError(
            f"{num_ranks} ranks cannot be divided into actors, replay and learners"
            f"{': ' + why if why else ''}; use --ranks {smallest_world(config)}, the smallest world with a rank for "
            "each role, or --ranks 1 for every role in one process"
        )
    return found


def smallest_world(config: RunConfig) -> int:
    """Ranks of the smallest world in which no rank has two roles: one of each."""
    return 1 if config.scheme == "synchronous" else 3


def to_type(config: RunConfig, num_ranks: int) -> str:
    """What makes a recipe's run this one, for the command line."""
    ranks = config.ranks
    if num_ranks == 1:
        return "--ranks 1"
    if config.scheme == "synchronous":
        return f"--set ranks.workers={ranks.workers}"
    counts = {"actors": ranks.actors, "replay": ranks.replay, "learners": ranks.learners}
    return " ".join(f"--set ranks.{role}={count}" for role, count in counts.items())


def _positions(config: RunConfig, actors: int) -> int:
    """Most learners that would each have something of a batch."""
    algorithm = config.algorithm
    if isinstance(algorithm, OffPolicyConfig):
        return algorithm.batch_size
    return 1 if algorithm.sends_gradients else algorithm.batch_trajectories or actors
