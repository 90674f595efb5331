"""The EnvPool adapter: flags (P44), order of rows, seeds by environment (P46), returns per game (P47)."""

import sys
import warnings

import numpy as np
import pytest

from hpcrl.config import ConfigError, EnvConfig
from hpcrl.envs import make_env_spec, make_vector_env
from hpcrl.envs.conventions import CountingPool
from hpcrl.envs.from_envpool import EnvPoolVectorEnv, split_end


def make(env_id, num_envs=1, seed=0, **kwargs):
    return make_vector_env(EnvConfig(id=env_id, engine="envpool", kwargs=kwargs), range(num_envs), seed)


def play(env, choose, count):
    obs = env.reset()
    steps = []
    for t in range(count):
        env.send(choose(t, obs))
        steps.append(env.recv())
        obs = steps[-1].obs
    return steps


def constant(action):
    return lambda t, obs: np.full(len(obs), action, np.int64)


@pytest.mark.parametrize(
    ("terminated", "truncated", "elapsed", "expected"),
    [
        (False, False, 1, (False, False)),
        (False, False, 6, (False, False)),
        (True, False, 6, (True, False)),
        (True, False, 7, (False, True)),
        (False, True, 7, (False, True)),
        (True, True, 7, (False, True)),
        (False, True, 3, (False, True)),
        (True, True, 3, (False, True)),
    ],
)
def test_table_of_flags(terminated, truncated, elapsed, expected):
    """P44: engine EnvPool, limit 7."""
    result = split_end(np.array([terminated]), np.array([truncated]), np.array([elapsed]), 7)
    assert (result[0].tolist(), result[1].tolist()) == ([expected[0]], [expected[1]])


@pytest.mark.parametrize("elapsed", [7, 8])
def test_a_limit_without_a_flag_is_a_conflict(elapsed):
    with pytest.raises(RuntimeError, match="environment 1 of the group reached max_episode_steps=7"):
        split_end(np.array([True, False]), np.zeros(2, bool), np.array([3, elapsed]), 7)


class Replay(CountingPool):
    """Plays back rows (terminated, truncated, elapsed_step) of one environment."""

    def __init__(self, rows):
        super().__init__([0], [0])
        self.rows = list(rows)

    def recv(self):
        terminated, truncated, elapsed = self.rows.pop(0)
        info = {"env_id": np.array([0]), "elapsed_step": np.array([elapsed])}
        flags = np.array([terminated]), np.array([truncated])
        return np.zeros((1, 2), np.float32), np.ones(1, np.float32), *flags, info


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(0, 0, 1), (0, 0, 0)], "was reset although no episode had ended"),
        ([(0, 0, 1), (1, 0, 2), (0, 0, 1)], "ended but was not reset"),
        ([(0, 0, 7)], "flags no end"),
    ],
)
def test_contradictions_of_flags_and_steps_raise(rows, words):
    env = EnvPoolVectorEnv(Replay(rows), "replay")
    with pytest.raises(RuntimeError, match=words):
        play(env, constant(0), len(rows))


def test_rows_come_in_the_order_of_the_environments():
    """CountingPool delivers them in another order every time."""
    steps = play(EnvPoolVectorEnv(CountingPool(range(5), range(5)), "pool"), constant(0), 8)
    assert steps[4].terminated.tolist() == [True, False, True, False, True]
    assert steps[6].truncated.tolist() == [False, True, False, True, False]
    tags = [step.obs[1, 1] for step in steps[:7]]
    assert len(set(tags)) == 1


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Pong-v5", "Ant-v5"])
def test_time_limits_of_the_real_engine(env_id):
    """P44, P45: truncated at the limit, then a reset step with another observation."""
    env = make(env_id, 2, max_episode_steps=4)
    action = np.zeros((2, *env.spec.action.shape), env.spec.action.dtype)
    steps = play(env, lambda t, obs: action, 10)
    env.close()
    for t, step in enumerate(steps):
        assert step.truncated.tolist() == [t in (3, 8)] * 2
        assert not step.terminated.any()
        assert step.valid.tolist() == [t not in (4, 9)] * 2
        assert step.episode_length.tolist() == [4 if t in (3, 8) else 0] * 2
        assert step.obs.dtype == env.spec.observation.dtype
        assert step.obs.shape == (2, *env.spec.observation.shape)
    assert (steps[4].reward == 0).all()
    assert env_id == "Pong-v5" or not np.array_equal(steps[3].obs, steps[4].obs)


def test_a_fall_of_cartpole_is_termination():
    steps = play(make("CartPole-v1"), constant(0), 30)
    assert any(step.terminated[0] for step in steps)
    assert not any(step.truncated[0] for step in steps)
    (end,) = [t for t, step in enumerate(steps[:12]) if step.terminated[0]]
    assert abs(steps[end].obs[0, 2]) > 0.2  # the pole has fallen: it is the last observation, not the first
    assert abs(steps[end + 1].obs[0, 2]) < 0.06


def fire_sometimes(t, obs):
    return np.full(len(obs), 1 if t % 8 == 0 else 3)


@pytest.mark.parametrize("episodic_life", [False, True])
def test_atari_returns_are_per_game(episodic_life):
    """P47: five lives; only the fifth reports the game, with the reward of all of them."""
    steps = play(make("Breakout-v5", episodic_life=episodic_life, noop_max=1), fire_sometimes, 900)
    lost = [t for t, step in enumerate(steps) if step.terminated[0]]
    games = [t for t, step in enumerate(steps) if step.episode_length[0] > 0]
    assert len(games) >= 2
    assert set(games) <= set(lost)
    assert len([t for t in lost if t <= games[0]]) == (5 if episodic_life else 1)
    raw = sum(float(step.reward[0]) for step in steps[: games[0] + 1])
    assert raw > 0
    assert steps[games[0]].episode_return[0] == raw
    assert steps[games[0]].episode_length[0] == sum(step.valid[0] for step in steps[: games[0] + 1])


def test_odd_sizes_and_threads():
    config = EnvConfig(id="CartPole-v1", engine="envpool", num_threads=2)
    streams = []
    for groups in ([range(5)], [range(2), range(2, 5)]):
        parts = []
        for group in groups:
            env = make_vector_env(config, group, 3)
            parts.append([step.obs for step in play(env, constant(1), 60)])
            env.close()
        streams.append([np.concatenate(rows) for rows in zip(*parts, strict=True)])
    assert all(np.array_equal(a, b) for a, b in zip(*streams, strict=True))


def test_actions_may_be_overwritten_after_send():
    streams = []
    for spoil in (False, True):
        env = make("Pendulum-v1", 3)
        env.reset()
        obs = []
        for _ in range(20):
            action = np.full((3, 1), 1.5, np.float32)
            env.send(action)
            if spoil:
                action[:] = -2
            obs.append(env.recv().obs)
        streams.append(obs)
    assert np.array_equal(*streams)


def test_close_while_an_env_step_is_under_way():
    env = make("CartPole-v1", 4)
    env.reset()
    env.send(np.zeros(4, np.int64))
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.recv()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "words"),
    [
        ("Cartpole-v1", {}, "did you mean CartPole-v1"),
        ("CartPole-v1", {"nonsense": 1}, "nonsense"),
        ("CartPole-v1", {"seed": 1}, "env.kwargs.seed cannot be set"),
        ("CartPole-v1", {"num_envs": 1}, "use env.num_envs"),
        ("CartPole-v1", {"num_threads": 1}, "use env.num_threads"),
        ("Pong-v5", {"reward_clip": True}, "use algorithm.reward_clip"),
    ],
)
def test_what_cannot_be_made_is_a_configuration_error(env_id, kwargs, words):
    with pytest.raises(ConfigError, match=words) as error:
        make_env_spec(EnvConfig(id=env_id, engine="envpool", kwargs=kwargs))
    assert "env." in str(error.value)


def test_a_missing_envpool_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError, match=r"env\.engine=envpool cannot be used.*install envpool"):
        make("CartPole-v1")


def test_making_environments_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("CartPole-v1")
