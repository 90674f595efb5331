"""Environments that are saved, and go on elsewhere as if nothing had been."""

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hpcrl.config import EnvConfig
from hpcrl.envs import Resumable, make_vector_env
from hpcrl.envs.from_gymnasium import adapt, make_from_factory

TOYS = [
    ("counting", {"tagged": True}),
    ("bandit", {"noise_std": 1.0}),
    ("chain", {"max_episode_steps": 7}),
    ("lives", {"episodic_life": True}),
    ("recall", {"delay": 2}),
    ("time-limit-chain", {}),
]
NAMES = ("obs", "reward", "terminated", "truncated", "valid", "episode_return", "episode_length")


def config(engine, env_id, kwargs=None):
    return EnvConfig(engine=engine, id=env_id, kwargs=kwargs or {}, num_envs=4)


def actions(spec, rng, count):
    if spec.kind == "discrete":
        return rng.integers(0, spec.size, count)
    return rng.uniform(-1, 1, (count, spec.size)).astype(np.float32)


def run(env, steps, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        env.send(actions(env.spec.action, rng, env.num_envs))
        env.recv()


def check_equal_from_here(first, second, rows=slice(None), steps=60):
    rng = np.random.default_rng(1)
    for _ in range(steps):
        chosen = actions(first.spec.action, rng, first.num_envs)
        first.send(chosen)
        second.send(chosen[rows])
        one, other = first.recv(), second.recv()
        for name in NAMES:
            assert np.array_equal(getattr(one, name)[rows], getattr(other, name)), name


@pytest.mark.parametrize(("env_id", "kwargs"), TOYS)
@pytest.mark.parametrize("steps", [0, 1, 5, 23])
def test_toys_go_on(env_id, kwargs, steps):
    env = make_vector_env(config("toy", env_id, kwargs), range(4), 3)
    env.reset()
    run(env, steps)
    state = env.state()
    run(env, 0)
    assert all(len(array) == 4 for array in state.values())
    other = make_vector_env(config("toy", env_id, kwargs), range(4), 99)
    other.load_state(state)
    check_equal_from_here(env, other)


@pytest.mark.parametrize(("env_id", "kwargs"), TOYS)
def test_rows_go_on_alone(env_id, kwargs):
    env = make_vector_env(config("toy", env_id, kwargs), range(4), 3)
    env.reset()
    run(env, 9)
    rows = slice(1, 3)
    other = make_vector_env(config("toy", env_id, kwargs), range(1, 3), 3)
    other.load_state({name: array[rows] for name, array in env.state().items()})
    check_equal_from_here(env, other, rows)


def test_a_saved_state_is_a_copy():
    env = make_vector_env(config("toy", "counting", {"tagged": True}), range(4), 3)
    env.reset()
    state = env.state()
    before = {name: array.copy() for name, array in state.items()}
    run(env, 20)
    assert all(np.array_equal(before[name], state[name]) for name in state)


@pytest.mark.parametrize("missing", ["_state", "episode/ended"])
def test_a_state_that_lacks_something_is_refused(missing):
    env = make_vector_env(config("toy", "chain"), range(4), 3)
    env.reset()
    state = env.state()
    del state[missing]
    with pytest.raises(ValueError, match=f"the saved state of chain has no {missing}"):
        make_vector_env(config("toy", "chain"), range(4), 3).load_state(state)


def test_loading_comes_instead_of_reset():
    env = make_vector_env(config("toy", "chain"), range(4), 3)
    env.reset()
    with pytest.raises(RuntimeError, match="load instead of reset"):
        env.load_state(env.state())


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"])
def test_gymnasium_goes_on_without_pickle(monkeypatch, env_id):
    for name in ("loads", "load", "dumps", "dump"):
        monkeypatch.setattr(pickle, name, lambda *_: pytest.fail("pickled"))
    env = make_vector_env(config("gymnasium", env_id), range(4), 3)
    env.reset()
    run(env, 30)  # of CartPole some episodes have just ended
    state = env.state()
    other = make_vector_env(config("gymnasium", env_id), range(4), 99)
    other.load_state(state)
    check_equal_from_here(env, other, steps=250)


def test_what_is_not_plain_is_not_saved():
    class Opaque(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.handle = object()

    env = make_from_factory("opaque", lambda: Opaque(gymnasium.make("CartPole-v1")), [1, 2], "sync")
    env.reset()
    assert isinstance(env, Resumable)
    assert env.state() is None


def test_other_engines_and_modes_are_not_saved():
    vector = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")], autoreset_mode=AutoresetMode.SAME_STEP)
    env = adapt(vector, seeds=[1], env_id="x")
    env.reset()
    assert env.state() is None
    assert not isinstance(make_vector_env(config("envpool", "CartPole-v1"), range(1), 0), Resumable)


class Solver(gymnasium.Env):
    """Holds its state where nobody sees it, but can write and read it."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        cell = [0.0]
        self.get, self.put = lambda: cell[0], lambda value: cell.__setitem__(0, value)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.put(0.0)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.put(self.get() * 0.5 + int(action))
        return np.array([self.get()], np.float32), self.get(), False, False, {}

    def save_state(self, path):
        path.write_text(repr(self.get()))

    def restore_state(self, path):
        self.put(float(path.read_text()))


def test_an_environment_may_save_a_file_of_its_own():
    def factory():
        return gymnasium.wrappers.TimeLimit(Solver(), 40)

    env = make_from_factory("solver", factory, [1, 2], "sync")
    env.reset()
    run(env, 17)
    other = make_from_factory("solver", factory, [3, 4], "sync")
    other.load_state(env.state())
    check_equal_from_here(env, other)


def test_a_state_of_another_environment_is_refused():
    first, second = (
        make_vector_env(config("gymnasium", name), range(2), 0) for name in ("CartPole-v1", "Acrobot-v1")
    )
    first.reset()
    with pytest.raises(
        ValueError, match="the saved state is of TimeLimit around OrderEnforcing around CartPoleEnv"
    ):
        second.load_state(first.state())
