"""From a run's name of an algorithm to the algorithm."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrl import algorithms
from hpcrl.algorithms import make_algorithm
from hpcrl.algorithms.impala import Impala
from hpcrl.config import ConfigError, ImpalaConfig, RunConfig
from tests.unit.algorithms.replayed import SETUPS
from tests.unit.algorithms.support import (
    CONFIGS,
    DISCRETE,
)

BUILTIN = {*CONFIGS, "a3c"}
OFF_POLICY = {*SETUPS}


def run_config(**algorithm: Any) -> RunConfig:
    return RunConfig.parse({"name": "test", "env": {"id": "x"}, "algorithm": algorithm})


class UserAlgorithm(Impala):
    """An algorithm outside the package."""

    Config = ImpalaConfig.__base__


class NotAnAlgorithm:
    Config = ImpalaConfig.__base__


def test_make_algorithm_by_name_and_by_path() -> None:
    for name in BUILTIN:
        algorithm = make_algorithm(run_config(name=name), DISCRETE)
        assert type(algorithm).__name__.lower() == name.replace("_", "")
        assert (
            algorithm.parameters.sha256()
            == make_algorithm(run_config(name=name), DISCRETE).parameters.sha256()
        )
    path = f"{__name__}:UserAlgorithm"
    assert type(make_algorithm(run_config(name=path), DISCRETE)).__name__ == "UserAlgorithm"


def test_make_algorithm_refuses_what_is_none() -> None:
    with pytest.raises(ConfigError, match=r"NotAnAlgorithm.*derived from"):
        make_algorithm(run_config(name=f"{__name__}:NotAnAlgorithm"), DISCRETE)
    assert set(algorithms.BUILTIN) == BUILTIN | OFF_POLICY


@pytest.mark.parametrize("name", sorted(OFF_POLICY))
def test_make_an_algorithm_that_learns_from_replay(name: str) -> None:
    setup = SETUPS[name]
    sections = {"algorithm": setup.config, "model": setup.model, "replay": {"sampling": "prioritized"}}
    config = RunConfig.parse({"name": "test", "env": {"id": "x"}} | sections)
    made, again = make_algorithm(config, setup.env), make_algorithm(config, setup.env)
    assert type(made).__name__.lower() == {"ddpg": "td3"}.get(name, name)
    assert made.parameters.sha256() == again.parameters.sha256()
