"""What the tests of configuration share."""

import pytest

from hpcrl.config import ConfigError, RunConfig

MINIMAL = {"name": "toy", "env": {"id": "CartPole-v1"}, "algorithm": {"name": "ppo"}}
SECTION_NAMES = [
    "env",
    "model",
    "algorithm",
    "ranks",
    "lag",
    "replay",
    "budget",
    "evaluation",
    "storage",
    "checkpoint",
    "comm",
    "reduction",
    "faults",
    "log",
    "profile",
]


def run_config(**changes):
    return RunConfig.parse(MINIMAL | changes)


def message(function, *arguments, **keywords):
    with pytest.raises(ConfigError) as caught:
        function(*arguments, **keywords)
    return str(caught.value)
