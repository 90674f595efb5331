"""The gymnasium adapter: spaces (P50), time limits (P44), processes (P05), other autoreset modes."""

import os
import time

import gymnasium
import numpy as np
import pytest
from envs_for_tests import DyingEnv, SpacesEnv
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hpcrl.config import ConfigError, EnvConfig
from hpcrl.envs import make_env_spec, make_vector_env, run_episodes
from hpcrl.envs.conventions import CountingGymEnv
from hpcrl.envs.from_gymnasium import adapt, make_from_factory
from hpcrl.envs.spaces import SpaceAdapter

BOX = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Discrete(2)


def adapted(observation_space, action_space, num_envs=2):
    inner = [SpacesEnv(observation_space, action_space) for _ in range(num_envs)]
    vector = SyncVectorEnv([lambda env=env: env for env in inner])
    return adapt(vector, seeds=list(range(num_envs)), env_id="spaces"), inner


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (BOX, (3,), "float32"),
        (spaces.Box(-1, 1, (2, 3), np.float64), (2, 3), "float32"),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), (1,), "float32"),
        (spaces.Box(0, 1, (), np.float32), (1,), "float32"),
        (spaces.Box(0, 255, (4, 8, 8), np.uint8), (4, 8, 8), "uint8"),
        (spaces.Box(-5, 5, (2,), np.int64), (2,), "float32"),
        (spaces.Discrete(5), (5,), "float32"),
        (spaces.Discrete(3, start=-1), (3,), "float32"),
        (spaces.Discrete(1), (1,), "float32"),
    ],
    ids=str,
)
def test_supported_observations_run_for_50_steps(space, shape, dtype):
    env, _ = adapted(space, TWO)
    assert (env.spec.observation.shape, env.spec.observation.dtype) == (shape, dtype)
    obs = env.reset()
    for _ in range(50):
        assert obs.shape == (2, *shape)
        assert obs.dtype == dtype
        if isinstance(space, spaces.Discrete):
            assert obs.sum(axis=1).tolist() == [1, 1]
        env.send(np.zeros(2, np.int64))
        obs = env.recv().obs


def test_choices_become_one_hot_rows_and_boxes_keep_their_numbers():
    choices = SpaceAdapter("x", spaces.Discrete(3, start=-1), TWO, None)
    assert choices.encode(np.array([-1, 1])).tolist() == [[1, 0, 0], [0, 0, 1]]
    numbers = SpaceAdapter("x", spaces.Box(-5, 5, (), np.int64), TWO, None)
    assert numbers.encode(np.array([-4, 5])).tolist() == [[-4.0], [5.0]]


@pytest.mark.parametrize(
    ("space", "action", "received"),
    [
        (TWO, [0, 1], [0, 1]),
        (spaces.Discrete(3, start=5), [0, 2], [5, 7]),
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 1]),
        (spaces.Box(-1, 1, (1,)), [[-3.0], [0.5]], [[-1.0], [0.5]]),
        (spaces.Box(np.float32([-2, 0]), np.float32([2, 1])), [[9, 9], [-9, -9]], [[2, 1], [-2, 0]]),
        (spaces.Box(-1, 1, (2, 1)), [[1, 2], [3, -4]], [[[1], [1]], [[1], [-1]]]),
        (spaces.Box(-np.inf, np.inf, (1,)), [[-3e8], [7.0]], [[-3e8], [7.0]]),
        (spaces.Box(-1, 1, (1,), np.float64), [[0.5], [-9]], [[0.5], [-1.0]]),
        (spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 0]], [[0, 2], [1, 0]]),
        (spaces.MultiDiscrete([2, 3], start=[5, -1]), [[0, 2], [1, 0]], [[5, 1], [6, -1]]),
        (spaces.MultiDiscrete([[2], [3]]), [[0, 2], [1, 0]], [[[0], [2]], [[1], [0]]]),
        (spaces.MultiBinary(3), [[0, 1, 1], [1, 0, 0]], [[0, 1, 1], [1, 0, 0]]),
        (spaces.MultiBinary([1, 2]), [[0, 1], [1, 0]], [[[0, 1]], [[1, 0]]]),
    ],
    ids=str,
)
def test_actions_reach_the_environment_clipped_and_shifted(space, action, received):
    env, inner = adapted(BOX, space)
    env.reset()
    env.send(np.array(action))
    env.recv()
    for row in range(2):
        assert inner[row].received[0].tolist() == received[row]
        assert space.contains(inner[row].received[0].astype(space.dtype))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(4),
        spaces.Sequence(TWO),
        spaces.Graph(BOX, None),
        spaces.Box(0, 1, (0,)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_unsupported_spaces_are_refused_by_name(space):
    """P50: at construction, naming the environment, the space and what is supported."""
    for what, pair in (("observation", (space, TWO)), ("action", (BOX, space))):
        with pytest.raises(ConfigError) as error:
            make_from_factory("my-env", lambda pair=pair: SpacesEnv(*pair), [0], "sync")
        message = str(error.value)
        assert f"env.id='my-env' has the {what} space {space}" in message
        assert "supported is" in message
        assert "Box" in message.split("supported is")[1]


def test_bounds_beyond_float32_are_no_bounds():
    largest = np.finfo(np.float64).max
    with np.errstate(all="raise"):
        env, inner = adapted(BOX, spaces.Box(-largest, largest, (1,), np.float64))
        assert (env.spec.action.low, env.spec.action.high) == ((-np.inf,), (np.inf,))
        env.reset()
        env.send(np.array([[3e38], [-3e38]]))
        env.recv()
    assert inner[0].received[0] == np.float32(3e38)


def test_integer_box_actions_are_refused():
    with pytest.raises(ConfigError, match="action space"):
        adapted(BOX, spaces.Box(0, 3, (2,), np.int64))


class Limit(gymnasium.Env):
    """Terminates by itself after `ends` steps; 0: never."""

    observation_space = BOX
    action_space = TWO

    def __init__(self, ends):
        self.ends, self.taken = ends, 0

    def reset(self, *, seed=None, options=None):
        self.taken = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.taken += 1
        return np.zeros(3, np.float32), 1.0, self.taken == self.ends, False, {}


@pytest.mark.parametrize(
    ("ends", "limit", "length", "terminated"),
    [
        (0, 4, 4, False),
        (3, 4, 3, True),
        (4, 4, 4, True),
        (0, 1, 1, False),
        (1, 1, 1, True),
        (2, None, 2, True),
    ],
)
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_time_limit_is_truncation(ends, limit, length, terminated, mode):
    """P44: elapsed = limit without a terminal cause is truncated; never both flags, never none."""

    def factory():
        return gymnasium.wrappers.TimeLimit(Limit(ends), limit) if limit else Limit(ends)

    env = adapt(SyncVectorEnv([factory], autoreset_mode=mode), seeds=[0])
    env.reset()
    ends_seen = []
    for t in range(3 * (length + 1)):
        env.send(np.zeros(1, np.int64))
        step = env.recv()
        assert not (step.terminated[0] and step.truncated[0])
        if step.terminated[0] or step.truncated[0]:
            ends_seen.append((t, bool(step.terminated[0]), int(step.episode_length[0])))
    assert ends_seen == [(k * (length + 1) + length - 1, terminated, length) for k in range(3)]


def test_same_step_engine_that_ignores_the_reset_mask_is_found():
    class Ignores(SyncVectorEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)

    factories = [lambda index=index: CountingGymEnv(index) for index in range(2)]
    env = adapt(Ignores(factories, autoreset_mode=AutoresetMode.SAME_STEP), seeds=[0, 1])
    env.reset()
    with pytest.raises(RuntimeError, match="ignores options"):
        for _ in range(8):
            env.send(np.zeros(2, np.int64))
            env.recv()


def test_engine_without_an_autoreset_mode_is_refused():
    vector = SyncVectorEnv([CountingGymEnv])
    vector.metadata = {}
    with pytest.raises(ConfigError, match="autoreset_mode"):
        adapt(vector, seeds=[0])


def test_number_of_seeds_must_match():
    with pytest.raises(ConfigError, match="2 seeds for 1"):
        adapt(SyncVectorEnv([CountingGymEnv]), seeds=[0, 1])


def test_next_step_wastes_no_env_step():
    inner = [CountingGymEnv(index) for index in range(3)]
    env = adapt(SyncVectorEnv([lambda e=e: e for e in inner]), seeds=[0, 1, 2])
    env.reset()
    valid = 0
    for _ in range(40):
        env.send(np.zeros(3, np.int64))
        valid += env.recv().valid.sum()
    assert valid == sum(e.steps_taken for e in inner)


@pytest.fixture
def no_fork(monkeypatch):
    def refuse():
        raise AssertionError("os.fork was called")

    monkeypatch.setattr(os, "fork", refuse)


def test_processes_are_spawned_never_forked_and_equal_the_synchronous_engine(no_fork):
    """P05, P43."""
    streams = []
    for vectorization in ("sync", "async"):
        env = make_vector_env(EnvConfig(id="CartPole-v1", vectorization=vectorization), range(2), 5)
        rows = [env.reset().copy()]
        for t in range(40):
            env.send(np.full(2, t % 3 == 0, np.int64))
            step = env.recv()
            rows += [np.copy(step.obs), step.reward, step.terminated, step.truncated, step.valid]
        env.close()
        env.close()
        streams.append(rows)
    assert all(np.array_equal(a, b) for a, b in zip(*streams, strict=True))
    assert not all(row.all() for row in streams[0][5::5])  # episodes did end


def test_a_dead_process_is_named(no_fork):
    env = make_from_factory("dying", DyingEnv, [0, 1], "async")
    env.reset()
    with pytest.raises(RuntimeError, match="'dying' died"):
        for _ in range(4):
            env.send(np.zeros(2, np.int64))
            env.recv()
    env.close()


def test_close_while_processes_step(no_fork):
    env = make_from_factory("counting", CountingGymEnv, [0, 1], "async")
    env.reset()
    env.send(np.zeros(2, np.int64))
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.recv()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_observations_live_until_the_next_recv(vectorization):
    env = make_from_factory("counting", CountingGymEnv, [0, 1], vectorization)
    first = env.reset()
    kept = first.copy()
    env.send(np.zeros(2, np.int64))
    time.sleep(0.3)  # processes have stepped by now
    assert np.array_equal(first, kept)
    second = env.recv().obs
    kept = second.copy()
    env.send(np.zeros(2, np.int64))
    assert np.array_equal(second, kept)
    env.recv()
    env.close()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "words"),
    [
        ("CartPol-v1", {}, "did you mean CartPole-v1"),
        ("CartPole-v9", {}, "did you mean CartPole-v1"),
        ("CartPole-v1", {"nonsense": 1}, "nonsense"),
        ("no_such_module:CartPole-v1", {}, "no_such_module"),
        ("envs_for_tests:Text-v0", {}, "Text"),
    ],
)
def test_what_cannot_be_made_is_a_configuration_error(env_id, kwargs, words):
    config = EnvConfig(id=env_id, kwargs=kwargs, vectorization="async")
    for make in (make_env_spec, lambda config: make_vector_env(config, range(2), 0)):
        with pytest.raises(ConfigError, match=words) as error:
            make(config)
        assert "env.id" in str(error.value)


def test_cartpole_and_its_time_limit():
    config = EnvConfig(id="CartPole-v1", kwargs={"max_episode_steps": 5})
    assert make_env_spec(config).max_episode_steps == 5
    env = make_vector_env(config, range(3), 0)
    results = run_episodes(env, lambda obs, begins: (obs[:, 2] > 0).astype(np.int64), 100)
    assert results == [(5.0, 5, False)] * 3
