"""Seeds by global index (P46), custom factories, and errors that name the key."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from hpcrl.config import ConfigError, EnvConfig
from hpcrl.data.specs import ArraySpec
from hpcrl.envs import VectorEnv, env_seed, make_env_spec, make_vector_env

CONFIGS = {
    "gymnasium": EnvConfig(id="CartPole-v1"),
    "gymnasium-continuous": EnvConfig(id="Pendulum-v1", kwargs={"max_episode_steps": 9}),
    "envpool": EnvConfig(id="CartPole-v1", engine="envpool"),
    "envpool-continuous": EnvConfig(id="Ant-v5", engine="envpool", kwargs={"max_episode_steps": 9}),
    "toy": EnvConfig(id="counting", engine="toy", kwargs={"tagged": True}),
    "custom": EnvConfig(id="hpcrl.envs.conventions:CountingGymEnv", engine="custom"),
}


def first_observations(config, indices, seed=7, episodes=4):
    """[B, episodes, *shape]: the first observations of the first and of the episodes after 3 autoresets."""
    env = make_vector_env(config, indices, seed)
    action = np.zeros((len(indices), *env.spec.action.shape), env.spec.action.dtype)
    seen = [[row] for row in np.array(env.reset())]
    for _ in range(150):
        env.send(action)
        step = env.recv()
        for row in np.flatnonzero(~step.valid):
            seen[row].append(np.array(step.obs[row]))
    env.close()
    return np.array([rows[:episodes] for rows in seen])


@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_environments_exist_however_they_are_divided(name):
    """P46: distinct, reproducible, independent of the division, still after 3 autoresets."""
    config = CONFIGS[name]
    whole = first_observations(config, range(6))
    assert whole.shape[:2] == (6, 4)
    assert len({obs.tobytes() for obs in whole.reshape(24, -1)}) == 24
    assert np.array_equal(whole, first_observations(config, range(6)))
    for sizes in ((3, 3), (2, 2, 2), (3, 2, 1)):
        bounds = pairwise(np.cumsum([0, *sizes]))
        parts = [first_observations(config, range(start, stop)) for start, stop in bounds]
        assert np.array_equal(whole, np.concatenate(parts)), sizes
    assert not np.array_equal(whole, first_observations(config, range(6), seed=8))


def test_seeds_are_31_bit_distinct_and_never_seed_plus_index():
    seeds = {(s, i): env_seed(s, i) for s in range(20) for i in range(100)}
    assert len(set(seeds.values())) == 2000
    assert all(0 <= value < 2**31 for value in seeds.values())
    assert seeds[0, 1] != seeds[1, 0]
    assert env_seed(7, 3) == int(np.random.SeedSequence([7, 3]).generate_state(1)[0]) // 2


@pytest.mark.parametrize("name", CONFIGS)
def test_spec_without_running(name):
    spec = make_env_spec(CONFIGS[name])
    env = make_vector_env(CONFIGS[name], range(3), 0)
    assert spec == env.spec
    assert env.num_envs == 3
    assert isinstance(env, VectorEnv)
    env.close()


def test_spec_of_an_asynchronous_configuration_starts_no_process(monkeypatch):
    def refuse(*args):
        raise AssertionError("a process was started")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", refuse)
    with pytest.raises(AssertionError, match="a process"):
        make_vector_env(EnvConfig(id="CartPole-v1", vectorization="async"), range(1), 0)
    assert make_env_spec(EnvConfig(id="CartPole-v1", vectorization="async")).observation.shape == (4,)


def test_no_indices():
    with pytest.raises(ValueError, match="indices are empty"):
        make_vector_env(CONFIGS["toy"], range(0), 0)


def test_custom_vector_factory_gets_seeds_and_kwargs():
    config = EnvConfig(id="envs_for_tests:make_vector", engine="custom", kwargs={"tagged": True})
    env = make_vector_env(config, range(4, 7), 1)
    assert env.seeds == [env_seed(1, index) for index in (4, 5, 6)]
    assert env.spec.observation == ArraySpec(shape=(2,), dtype="float32")


@pytest.mark.parametrize("name", CONFIGS)
def test_any_environment_with_rewards_that_are_not_finite(name):
    kwargs = {"env": CONFIGS[name].to_dict()}
    config = EnvConfig(id="hpcrl.envs:make_with_nan_rewards", engine="custom", kwargs=kwargs)
    env, same = make_vector_env(config, range(3), 0), make_vector_env(CONFIGS[name], range(3), 0)
    assert env.spec.observation == same.spec.observation and env.num_envs == 3
    np.testing.assert_array_equal(env.reset(), same.reset())
    for one in (env, same):
        one.send(np.zeros((3, *one.spec.action.shape), one.spec.action.dtype))
    step, other = env.recv(), same.recv()
    assert np.isnan(step.reward).all() and np.isfinite(other.reward).all()
    np.testing.assert_array_equal(step.obs, other.obs)
    env.close()
    same.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_custom_factory_may_give_a_gymnasium_vector_environment(mode):
    config = EnvConfig(id="envs_for_tests:make_gymnasium_vector", engine="custom", kwargs={"mode": mode})
    env = make_vector_env(config, range(2), 1)
    tag = np.random.default_rng(env_seed(1, 1)).random()
    assert env.reset()[1].tolist() == [0, np.float32(tag)]


def test_custom_gymnasium_factory_with_processes():
    config = EnvConfig(
        id="hpcrl.envs.conventions:CountingGymEnv",
        engine="custom",
        vectorization="async",
        kwargs={"index": 1},
    )
    env = make_vector_env(config, range(2), 1)
    obs = env.reset()
    assert (obs[:, 0] == 0).all()
    assert obs[0, 1] != obs[1, 1]
    env.close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EnvConfig(id="no_such.module:make", engine="custom"), "cannot be imported"),
        (EnvConfig(id="envs_for_tests:absent", engine="custom"), "absent"),
        (EnvConfig(id="make", engine="custom"), "package.module:name"),
        (EnvConfig(id="envs_for_tests:np", engine="custom"), "not callable"),
        (EnvConfig(id="envs_for_tests:make_nonsense", engine="custom"), "made a str"),
        (EnvConfig(id="envs_for_tests:make_nothing", engine="custom"), "made a str"),
        (EnvConfig(id="envs_for_tests:make_text", engine="custom"), "space Text"),
        (EnvConfig(id="envs_for_tests:make_vector", engine="custom", kwargs={"x": 1}), "env.kwargs.*'x'"),
        (EnvConfig(id="envs_for_tests:make_nothing", engine="custom", kwargs={"x": 1}), "env.kwargs.*'x'"),
        (EnvConfig(id="countin", engine="toy"), "did you mean counting.*Known: bandit, chain"),
        (EnvConfig(id="counting", engine="toy", kwargs={"x": 1}), "env.kwargs.*'x'"),
        (EnvConfig(id="chain", engine="toy", kwargs={"size": 1}), "size=1"),
        (EnvConfig(id="failing", engine="toy", kwargs={"fault": "rise"}), "use one of raise, exit"),
    ],
    ids=lambda value: value.id if isinstance(value, EnvConfig) else "",
)
def test_errors_name_the_key(config, words):
    with pytest.raises(ConfigError, match=words) as error:
        make_vector_env(config, range(2), 0)
    assert "env." in str(error.value)


def test_importing_the_package_loads_no_engine():
    code = (
        "import sys, hpcrl.envs, hpcrl.testing; print([m for m in ('gymnasium', 'envpool', 'torch', 'mpi4py') "
        "if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
