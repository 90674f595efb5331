"""Every recipe in jobs/ loads without torch and MPI, and is a valid run."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from hpcrl.config import RunConfig

JOBS = Path(__file__).parents[2] / "jobs"


def load(path):
    spec = importlib.util.spec_from_file_location(f"jobs_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recipes():
    """Functions that give a RunConfig; a file may hold a program beside or instead of them."""
    found = {}
    for path in sorted(JOBS.glob("*.py")):
        module = load(path)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            given = get_type_hints(function).get("return")
            if function.__module__ == module.__name__ and not name.startswith("_") and given is RunConfig:
                found[f"{path.name}:{name}"] = function
    return found


def test_the_recipes_are_these():
    assert list(recipes()) == [
        "acrobot.py:impala",
        "acrobot.py:ppo",
        "atari.py:breakout_impala",
        "atari.py:breakout_ppo",
        "atari.py:pong_apex",
        "atari.py:pong_impala",
        "atari.py:pong_ppo",
        "cartpole.py:a2c",
        "cartpole.py:a3c",
        "cartpole.py:apex",
        "cartpole.py:decoupled_ppo",
        "cartpole.py:dqn",
        "cartpole.py:impact",
        "cartpole.py:impala",
        "cartpole.py:ppo",
        "lunarlander.py:decoupled_ppo",
        "lunarlander.py:dqn",
        "lunarlander.py:ppo",
        "memory.py:feedforward",
        "memory.py:gru",
        "memory.py:impala",
        "memory.py:lstm",
        "memory.py:r2d2",
        "mujoco.py:halfcheetah",
        "mujoco.py:halfcheetah_sac",
        "mujoco.py:halfcheetah_td3",
        "mujoco.py:hopper",
        "mujoco.py:walker2d",
        "pendulum.py:ppo",
        "pendulum.py:sac",
        "pendulum.py:td3",
        "slow_solver.py:impala",
    ]


@pytest.mark.parametrize("name", recipes())
def test_recipe_is_a_valid_run(name):
    config = recipes()[name]()
    assert isinstance(config, RunConfig)
    assert RunConfig.parse(config.to_dict()) == config
    task = (
        config.env.id.partition("-")[0].lower() if config.env.engine == "envpool" else name.partition(".")[0]
    )
    assert config.name in {f"{task}-{config.algorithm.name}", name.replace(".py:", "-")}
    assert name in {
        f"memory.py:{config.name.partition('-')[2]}",
        f"{task}.py:{config.algorithm.name}",
        f"mujoco.py:{task}",
        f"mujoco.py:{task}_{config.algorithm.name}",
        f"atari.py:{task}_{config.algorithm.name}",
    }
    assert inspect.getdoc(recipes()[name])


@pytest.mark.parametrize("name", recipes())
def test_budget_is_many_updates(name):
    config = recipes()[name]()
    assert config.budget.env_steps >= 20 * config.env.num_envs * config.algorithm.unroll_length


@pytest.mark.parametrize("name", recipes())
def test_minibatches_divide_the_batch(name):
    config = recipes()[name]()
    batch = config.env.num_envs * config.algorithm.unroll_length
    assert batch % getattr(config.algorithm, "num_minibatches", 1) == 0


def test_recipes_differ_in_name():
    names = [function().name for function in recipes().values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.py")), ids=lambda path: path.name)
def test_recipe_loads_neither_torch_nor_mpi(path):
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1])\n"
        "sys.exit(','.join({'torch', 'mpi4py', 'h5py', 'gymnasium', 'envpool'} & set(sys.modules)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert finished.stderr.strip() == ""
