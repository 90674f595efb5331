"""Evaluations while a run goes on: each once, at its env_steps, in any attempts; training does not notice."""

import numpy as np
import pytest

from hpcrl.algorithms import frozen_policy
from hpcrl.envs import evaluate_policy
from hpcrl.launch.recipes import load_config
from hpcrl.showing.play import load_policy
from hpcrl.storage import describe, read_table
from hpcrl.storage.models import load_parameters, stored_models
from tests.mpi.resume_support import (
    RECURRENT,
    attempt,
    cut_run,
    folder,
    half,
    on_root,
    pipeline,
    shared_out,
    synchronous,
    weights,
    weights_of_whole,
)

APART = 300
"""About five updates: more than a pipeline makes from a signal to the cut that it stops at."""
EVERY = {"evaluation": {"episodes": 3, "every_env_steps": APART, "greedy": False}, "models": {"keep": 100}}
COLUMNS = ["update", "env_steps", "seed", "episode", "episode_return", "parameter_version"]


def settings_of(kind, size, **sections):
    if kind == "pipeline":
        return pipeline(size, 1, budget={"env_steps": 1100}, **sections)
    model, budget = RECURRENT | {"normalize_observations": True}, {"env_steps": 4 * APART}
    return synchronous(size, model=model, budget=budget, **sections)


@pytest.mark.parametrize("kind", shared_out("synchronous", "pipeline"))
def test_evaluations_are_made_once_each_and_training_does_not_notice(comm, kind):
    """Also where a signal comes in one, in the first part of a run that is stopped again right after another."""
    with half(comm) as world, folder(world) as path:
        settings = settings_of(kind, world.size, **EVERY)
        assert attempt(world, path / "whole", settings) == 0
        assert weights(world, path / "whole") == weights_of_whole(world, settings_of(kind, world.size))
        places = on_root(world, check_places, path / "whole")
        stops = [f"evaluation of 3 episodes at update {places[0]}", places[1]]
        assert cut_run(world, path / "cut", settings, stops) == [75, 75, 0]
        on_root(world, check_same, path)
        on_root(world, check_play, path / "whole")


def check_places(path):
    """An evaluation at the first update that reached each multiple of APART env_steps, and one at the end.

    The last update may be both.
    """
    updates, rows = read_table(path, "updates"), read_table(path, "evaluation")
    due = updates["update"][np.flatnonzero(np.diff(updates["env_steps"] // APART, prepend=0))].tolist()
    last = int(updates["update"].max())
    assert rows["update"].tolist() == np.repeat(sorted({*due, last}), 3).tolist()
    assert rows["parameter_version"].tolist() == rows["update"].tolist()
    assert rows["env_steps"].tolist() == updates["env_steps"][rows["update"] - 1].tolist()
    timed = read_table(path, "timers")
    assert timed["count"][timed["hop"] == b"models.store"].max() == 4
    assert timed["seconds"][timed["hop"] == b"evaluation"].max() > 0
    return due


def check_same(path):
    """The run that was cut has the rows and models of the one that was not, and those of where it was stopped."""
    rows, models = evaluated(path / "whole")
    again, more = evaluated(path / "cut")
    assert again == rows
    assert {version: more[version] for version in models} == models
    assert all(score is None for version, (score, _) in more.items() if version not in models)


def evaluated(path):
    """(rows, version -> evaluation and weights) of a run."""
    models = {one.version: (one.evaluation, load_parameters(one)) for one in stored_models(path)}
    return read_table(path, "evaluation")[COLUMNS].tolist(), {
        version: (score, {name: values.tobytes() for name, values in parameters.items()})
        for version, (score, parameters) in models.items()
    }


def check_play(path):
    """Every stored model plays as it was evaluated, with what it remembers and what its version normalizes by."""
    rows, config = read_table(path, "evaluation"), load_config(str(path))
    settings, parameters = config.evaluation, set()
    for version in sorted(set(rows["update"])):
        algorithm, _ = load_policy(path, config, str(version))
        policy = frozen_policy(algorithm, settings.episodes, settings.seed, greedy=settings.greedy)
        found = evaluate_policy(config.env, settings, policy)
        assert [one.episode_return for one in found] == rows["episode_return"][
            rows["update"] == version
        ].tolist()
        parameters.add(algorithm.parameters.sha256())
    assert len(parameters) == 4 and describe(path)["weights_sha256"][0] in parameters
