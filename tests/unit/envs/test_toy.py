"""Toy environments against their known values."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.config import EnvConfig
from hpcrl.envs import make_vector_env, run_episodes
from hpcrl.envs.toy import chain_values


def make(env_id, num_envs=1, seed=0, **kwargs):
    return make_vector_env(EnvConfig(id=env_id, engine="toy", kwargs=kwargs), range(num_envs), seed)


def play(env, actions):
    env.reset()
    steps = []
    for action in actions:
        env.send(np.full(env.num_envs, action))
        steps.append(env.recv())
    return steps


def test_counting_by_hand():
    steps = play(make("counting", 2), [0] * 15)
    assert [int(s.obs[0, 0]) for s in steps] == [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert [int(s.obs[1, 0]) for s in steps] == [1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 0, 1]
    assert [t for t, s in enumerate(steps) if s.terminated[0]] == [4]
    assert [t for t, s in enumerate(steps) if s.truncated[0]] == [12]
    assert [t for t, s in enumerate(steps) if s.truncated[1]] == [6]
    assert [t for t, s in enumerate(steps) if s.terminated[1]] == [12]
    assert [s.reward[0] for s in steps] == [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert [t for t, s in enumerate(steps) if not s.valid[0]] == [5, 13]
    assert steps[4].episode_return[0] == 15
    assert steps[12].episode_return[0] == 28


def test_counting_depends_on_the_global_index_not_the_row():
    config = EnvConfig(id="counting", engine="toy")
    alone = play(make_vector_env(config, [1], 0), [0] * 7)
    assert alone[6].truncated[0]


def test_bandit_pays_the_arm():
    steps = play(make("bandit", 3, means=[0.25, 0.75, -1.0]), [0, 1, 1, 0, 2])
    assert [float(s.reward[2]) for s in steps] == [0.25, 0, 0.75, 0, -1.0]
    assert all(s.terminated.all() == s.valid.all() for s in steps)


def test_bandit_noise_comes_from_each_seed():
    config = EnvConfig(id="bandit", engine="toy", kwargs={"noise_std": 1.0})
    both = play(make_vector_env(config, range(2), 3), [1] * 9)
    second = play(make_vector_env(config, [1], 3), [1] * 9)
    assert [s.reward[1] for s in both] == [s.reward[0] for s in second]
    assert [s.reward[0] for s in both] != [s.reward[1] for s in both]


def test_chain_values_against_a_simulation():
    gamma, right = 0.9, 0.7
    env = make("chain", 2000, seed=1)
    rng = np.random.default_rng(0)
    env.reset()
    discount, value, running = 1.0, np.zeros(2000), np.ones(2000, bool)
    for _ in range(90):
        env.send((rng.random(2000) < right).astype(np.int64))
        step = env.recv()
        value += discount * step.reward * running
        running &= ~step.terminated
        discount *= gamma
    standard_error = value.std() / np.sqrt(2000)
    assert abs(value.mean() - chain_values(5, gamma, right)[0]) < 4 * standard_error


@pytest.mark.parametrize("delay", [0, 3])
def test_recall_by_hand(delay):
    env = make("recall", 60, size=3, delay=delay)
    cue = env.reset().argmax(1)
    assert set(cue) == {0, 1, 2}
    for episode in range(2):
        for t in range(delay + 1):
            env.send(cue)
            step = env.recv()
            assert (step.obs[:, -1] == (t == delay)).all() and not step.obs[:, :-1].any()
            assert not step.reward.any() and step.valid.all() and not step.terminated.any()
        env.send(np.where(np.arange(60) < 30, cue, (cue + 1) % 3))
        step = env.recv()
        assert (step.reward == (np.arange(60) < 30)).all() and step.terminated.all()
        assert (step.episode_length == delay + 2).all() and not step.obs.any(), episode
        env.send(cue)
        before, cue = cue, env.recv().obs.argmax(1)
        assert (before != cue).any()


@pytest.mark.parametrize("size", [2, 3, 6])
def test_chain_best_policy(size):
    (result,) = run_episodes(make("chain", size=size), lambda obs, begins: np.ones(1, np.int64), 50)
    assert result == (1.0, size - 1, False)
    assert chain_values(size, 0.5)[0] == pytest.approx(0.5 ** (size - 2))
    assert chain_values(size, 0.5)[-1] == 0


def test_chain_walls_and_limit():
    steps = play(make("chain", max_episode_steps=3), [0, 0, 0, 1, 1])
    assert [int(s.obs[0].argmax()) for s in steps] == [0, 0, 0, 0, 1]
    assert [bool(s.truncated[0]) for s in steps] == [False, False, True, False, False]


def test_reaching_the_goal_at_the_limit_is_termination():
    steps = play(make("chain", size=3, max_episode_steps=2), [1, 1])
    assert steps[-1].terminated[0]
    assert not steps[-1].truncated[0]


def test_time_limit_chain_is_cut_never_terminated():
    steps = play(make("time-limit-chain"), [0] * 18)
    assert [t for t, s in enumerate(steps) if s.truncated[0]] == [4, 10, 16]
    assert not any(s.terminated[0] for s in steps)
    assert sum(s.reward[0] for s in steps) == sum(s.valid[0] for s in steps) == 15


@pytest.mark.parametrize("episodic_life", [False, True])
def test_lives_report_the_game(episodic_life):
    """P47: rewards of 5 and several lives; the return is that of the whole game either way."""
    steps = play(make("lives", episodic_life=episodic_life), [0] * 30)
    games = [(s.episode_return[0], s.episode_length[0]) for s in steps if s.episode_length[0] > 0]
    assert games == [(60.0, 12), (60.0, 12)]
    assert {float(s.reward[0]) for s in steps if s.valid[0]} == {5.0}
    ends = sum(s.terminated[0] for s in steps)
    assert ends == (6 if episodic_life else 2)


def test_slow_overlaps_with_work_between_send_and_recv(monkeypatch):
    """It sleeps, and only for what the work has left of its time."""
    now, slept = [100.0], []
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=slept.append)
    monkeypatch.setattr("hpcrl.envs.toy_faults.time", clock)
    env = make("slow", seconds=0.5)
    env.reset()
    for work_s in (0.0, 0.25, 0.75):
        env.send(np.zeros(1, np.int64))
        now[0] += work_s
        env.recv()
    assert slept == [0.5, 0.25, 0.0]


def test_failing_raises_at_its_step():
    env = make("failing", at_step=2)
    env.reset()
    for _ in range(2):
        env.send(np.zeros(1, np.int64))
        env.recv()
    env.send(np.zeros(1, np.int64))
    with pytest.raises(RuntimeError, match="told to"):
        env.recv()


def test_failing_only_in_the_group_of_one_index():
    config = EnvConfig(id="failing", engine="toy", kwargs={"at_step": 0, "index": 4})
    play(make_vector_env(config, range(4), 0), [0, 0])
    with pytest.raises(RuntimeError, match="told to"):
        play(make_vector_env(config, range(4, 6), 0), [0])


def test_failing_by_nan():
    steps = play(make("failing", at_step=1, fault="nan"), [0, 0])
    assert np.isfinite(steps[0].reward).all()
    assert np.isnan(steps[1].reward).all()
