"""Evaluations while a run goes on: each once, at its env_steps, in any attempts; training does not notice."""

import numpy as np
import pytest

from hpcrl.algorithms import frozen_policy
from hpcrl.envs import evaluate_policy
from hpcrl.launch.recipes import load_config
from hpcrl.showing.play import load_policy
from hpcrl.storage import describe, read_table
from hpcrl.storage.models import best_model, load_parameters, stored_models
from tests.mpi.resume_support import (
    CHAIN,
    NORMALIZED,
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
BUDGET = {"budget": {"env_steps": 1500}}
COLUMNS = ["update", "env_steps", "seed", "episode", "episode_return", "parameter_version"]


def settings_of(kind, size, **sections):
    if kind == "synchronous":
        return synchronous(size, **BUDGET, **sections)
    if kind == "normalized":
        return synchronous(size, **BUDGET, **NORMALIZED, **sections)
    if kind == "recurrent":
        return synchronous(size, model=RECURRENT, **BUDGET, **sections)
    return pipeline(size, 1, **BUDGET, **sections)


def evaluated(path):
    """(rows, version -> evaluation and weights) of a run."""
    rows = read_table(path, "evaluation")
    models = {one.version: (one.evaluation, load_parameters(one)) for one in stored_models(path)}
    return rows[COLUMNS].tolist(), {
        version: (score, {name: values.tobytes() for name, values in parameters.items()})
        for version, (score, parameters) in models.items()
    }


def check_places(path):
    """An evaluation at the first update that reached each multiple of APART env_steps, and one at the end."""
    updates, rows = read_table(path, "updates"), read_table(path, "evaluation")
    passed = updates["env_steps"] // APART
    due = updates["update"][np.flatnonzero(np.diff(passed, prepend=0))].tolist()
    last = int(updates["update"].max())
    assert rows["update"].tolist() == np.repeat(sorted({*due, last}), 3).tolist()
    assert rows["parameter_version"].tolist() == rows["update"].tolist()
    assert rows["env_steps"].tolist() == updates["env_steps"][rows["update"] - 1].tolist()
    assert len(due) >= 4


@pytest.mark.parametrize("kind", shared_out("synchronous", "pipeline", "normalized", "recurrent"))
def test_training_does_not_notice(comm, kind):
    with half(comm) as world, folder(world) as path:
        assert attempt(world, path / "run", settings_of(kind, world.size, **EVERY)) == 0
        assert weights(world, path / "run") == weights_of_whole(world, settings_of(kind, world.size))
        on_root(world, check_places, path / "run")


@pytest.mark.parametrize("kind", shared_out("pipeline", "synchronous"))
def test_none_is_lost_or_made_twice_in_attempts(comm, kind):
    """Stopped before, in and after an evaluation; in the last update that one falls into, too."""
    with half(comm) as world, folder(world) as path:
        settings = settings_of(kind, world.size, **EVERY)
        assert attempt(world, path / "whole", settings) == 0
        places = on_root(world, lambda: sorted({row[0] for row in evaluated(path / "whole")[0]}))
        stops = [
            places[0] - 1,
            *(f"evaluation of 3 episodes at update {place}" for place in places[1:3]),
            places[3],
        ]
        assert cut_run(world, path / "cut", settings, stops) == [75] * len(stops) + [0]
        rows, models = on_root(world, evaluated, path / "whole")
        again, more = on_root(world, evaluated, path / "cut")
        assert again == rows
        assert {version: more[version] for version in models} == models
        assert all(score is None for version, (score, _) in more.items() if version not in models)


def test_the_best_model_stays_and_what_was_stored_is_what_was_trained(comm):
    with half(comm) as world, folder(world) as path:
        settings = settings_of("synchronous", world.size, **EVERY | {"models": {"keep": 1}})
        assert attempt(world, path / "run", settings) == 0
        on_root(world, check_store, path / "run")


def test_a_stored_model_plays_as_it_was_evaluated(comm):
    """With what it remembers and what it normalizes by, of its own version."""
    with half(comm) as world, folder(world) as path:
        model = RECURRENT | {"normalize_observations": True}
        settings = settings_of("synchronous", world.size, env=CHAIN, model=model, **EVERY)
        assert attempt(world, path / "run", settings) == 0
        on_root(world, check_play, path / "run")


def check_play(path):
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
    assert len(parameters) == len(set(rows["update"])) >= 5
    assert describe(path)["weights_sha256"][0] in parameters


def check_store(path):
    rows, models = read_table(path, "evaluation"), stored_models(path)
    means = {
        update: rows["episode_return"][rows["update"] == update].mean() for update in set(rows["update"])
    }
    best = max(means, key=lambda update: (means[update], update))
    last = int(rows["update"].max())
    assert [one.version for one in models] == sorted({int(best), last})
    assert best_model(models).evaluation.mean == means[best]
