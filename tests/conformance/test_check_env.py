"""The shipped suite passes sound environments and finds each fault of a broken one."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hpcrl.config import ConfigError, EnvConfig, ExitCode
from hpcrl.data.specs import ArraySpec
from hpcrl.envs import Step
from hpcrl.envs.toy import Counting, Lives, TimeLimitChain
from hpcrl.envs.toy_vector import ToyVectorEnv
from hpcrl.testing import EnvCheckError, check_command, check_env

SOUND = [
    "toy:counting",
    "toy:bandit",
    "toy:chain",
    "toy:time-limit-chain",
    "toy:lives",
    "gymnasium:CartPole-v1",
    "gymnasium:Pendulum-v1",
    "envpool:CartPole-v1",
    "envpool:Pendulum-v1",
    "hpcrl.envs.conventions:CountingGymEnv",
]


@pytest.mark.parametrize("path", SOUND)
def test_sound_environments_pass(path):
    report = check_env(path, steps=60)
    assert report.errors == ()
    assert report.env_steps_per_s > 0


@pytest.mark.parametrize("num_envs", [1, 2])
def test_small_groups(num_envs):
    assert check_env("toy:counting", num_envs=num_envs, steps=1).errors == ()


def test_episodic_life_passes():
    assert check_env("toy:lives", kwargs={"episodic_life": True}).errors == ()


class Wrapped:
    """A sound environment with one thing made wrong by a subclass."""

    dynamics = partial(Counting, tagged=True)

    def __init__(self, num_envs, seeds):
        indices = [seed % 2 for seed in seeds]  # fixes the kind of the first end, as the seed does the rest
        self.inner = ToyVectorEnv(type(self).dynamics(indices, seeds), num_envs)
        self.spec = self.inner.spec
        self.num_envs = num_envs
        self.last = None

    def reset(self):
        self.last = self.inner.reset()
        return self.last

    def send(self, actions):
        self.inner.send(actions)

    def recv(self):
        step = self.inner.recv()
        changed = self.change(step)
        self.last = step.obs
        return changed

    def change(self, step: Step) -> Step:
        return step

    def close(self):
        self.inner.close()


def check(broken, **kwargs):
    """The errors of a broken environment, as {check: joined messages}."""
    with pytest.raises(EnvCheckError) as error:
        check_env(broken, **kwargs)
    found = {}
    for finding in error.value.report.errors:
        found[finding.check] = found.get(finding.check, "") + finding.message
        assert finding.message in str(error.value)
    return found


def test_the_wrapper_itself_is_sound():
    report = check_env(Wrapped)
    assert report.findings == ()
    assert report.spec.observation.shape == (2,)


def ended(step):
    return step.terminated | step.truncated


CHANGES = {
    "obs dtype": ("arrays", "obs is float64", lambda env, s: replace(s, obs=s.obs.astype(np.float64))),
    "obs shape": ("arrays", "obs is float32[3, 1]", lambda env, s: replace(s, obs=s.obs[:, :1])),
    "reward dtype": ("arrays", "reward is float64", lambda env, s: replace(s, reward=s.reward.astype(float))),
    "flag dtype": (
        "arrays",
        "terminated is int64",
        lambda env, s: replace(s, terminated=s.terminated.astype(int)),
    ),
    "nan": ("finite", "obs holds", lambda env, s: replace(s, obs=np.where(s.obs == 3, np.nan, s.obs))),
    "infinite reward": (
        "finite",
        "reward holds",
        lambda env, s: replace(s, reward=np.where(s.reward == 3, np.float32(np.inf), s.reward)),
    ),
    "both flags": ("flags", "at once", lambda env, s: replace(s, truncated=ended(s))),
    "always valid": (
        "valid",
        "right after an end are valid",
        lambda env, s: replace(s, valid=s.valid | True),
    ),
    "invalid at the end": (
        "valid",
        "although no end",
        lambda env, s: replace(s, valid=s.valid & ~ended(s)),
    ),
    "paid reset": ("reset step", "pay a reward", lambda env, s: replace(s, reward=s.reward + ~s.valid)),
    "flagged reset": (
        "reset step",
        "reset steps are terminated",
        lambda env, s: replace(s, terminated=s.terminated | ~s.valid),
    ),
    "clipped return": (
        "accounting",
        "raw, undiscounted",
        lambda env, s: replace(s, episode_return=np.minimum(s.episode_return, 1)),
    ),
    "length off by one": (
        "accounting",
        "episode_length is",
        lambda env, s: replace(s, episode_length=s.episode_length + (s.episode_length > 0)),
    ),
    "length everywhere": (
        "accounting",
        "ends no episode",
        lambda env, s: replace(s, episode_length=s.episode_length + 1),
    ),
    "no length": (
        "accounting",
        "never above 0",
        lambda env, s: replace(s, episode_length=s.episode_length * 0),
    ),
    "stale last observation": (
        "last observation",
        "repeats the observation before",
        lambda env, s: replace(s, obs=np.where(ended(s)[:, None], env.last, s.obs)),
    ),
    "limit as terminal": (
        "time limit",
        "all episodes of max_episode_steps=7 are terminated",
        lambda env, s: replace(s, terminated=ended(s), truncated=s.truncated & False),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_fault_of_a_step_is_found(name):
    expected, words, change = CHANGES[name]

    class Broken(Wrapped):
        def change(self, step):
            return change(self, step)

    found = check(Broken)
    assert expected in found
    assert words in found[expected]


def test_first_observation_in_place_of_the_last():
    class Broken(Wrapped):
        dynamics = Counting

        def change(self, step):
            return replace(step, obs=np.where(ended(step)[:, None], np.float32(0), step.obs))

    assert "is a first observation" in check(Broken)["last observation"]


def test_episodes_longer_than_the_limit():
    class Broken(Wrapped):
        def __init__(self, num_envs, seeds):
            super().__init__(num_envs, seeds)
            self.spec = replace(self.spec, max_episode_steps=6)

    assert "an episode has 7" in check(Broken)["time limit"]


def test_per_life_returns_are_found():
    """A game of 3 lives that reports 20 at each end where 60 is the game's return is fine per life only."""

    class Broken(Wrapped):
        dynamics = Lives

        def change(self, step):
            return replace(step, episode_return=step.episode_return / 3)

    assert "rewards sum to [60." in check(Broken)["accounting"]


def test_unsupported_observation_dtype():
    class Broken(Wrapped):
        def __init__(self, num_envs, seeds):
            super().__init__(num_envs, seeds)
            self.spec = replace(self.spec, observation=ArraySpec(shape=(2,), dtype="float64"))

    assert "use float32 or uint8" in check(Broken)["arrays"]


def test_unseeded():
    class Broken(Wrapped):
        def __init__(self, num_envs, seeds):
            super().__init__(num_envs, list(np.random.SeedSequence().generate_state(num_envs)))

    assert "same seeds and actions differ" in check(Broken)["seeding"]


def test_seed_plus_row():
    class Broken(Wrapped):
        def __init__(self, num_envs, seeds):
            super().__init__(num_envs, [seeds[0] + row for row in range(num_envs)])

    assert "divided into other groups" in check(Broken)["seeding"]


class SeededChain(TimeLimitChain):
    """Observes a number drawn from the seed at each restart."""

    def __init__(self, indices, seeds, reseed=False):
        super().__init__(indices, seeds)
        self.seeds = seeds
        self.reseed = reseed
        self.draws = [np.random.default_rng(seed) for seed in seeds]
        self.obs = np.zeros((len(seeds), 1), np.float32)

    def restart(self, rows):
        super().restart(rows)
        for row in np.flatnonzero(rows):
            if self.reseed:
                self.draws[row] = np.random.default_rng(self.seeds[row])
            self.obs[row] = self.draws[row].random()

    def observe(self):
        return self.obs.copy()


def test_autoreset_that_reseeds():
    class Broken(Wrapped):
        dynamics = partial(SeededChain, reseed=True)

    assert "must not reseed" in check(Broken)["seeding"]


def test_seeds_that_change_nothing_are_only_noted():
    class Unseeded(Wrapped):
        def __init__(self, num_envs, seeds):
            super().__init__(num_envs, [0] * num_envs)

    assert [finding.message for finding in check_env(Unseeded).findings] == [
        "the seeds change nothing: a deterministic environment?"
    ]


def test_one_seed_for_all_rows(monkeypatch):
    """Every environment plays the episode of the run's seed, whatever its index."""
    monkeypatch.setattr("hpcrl.testing.env_suite.env_seed", lambda seed, index: seed)

    class Same(Wrapped):
        dynamics = SeededChain

    assert "play the same episode" in check(Same)["seeding"]


def test_obs_buffer_overwritten_by_send():
    class Broken(Wrapped):
        def send(self, actions):
            super().send(actions)
            self.last[:] = -1

    assert "send() overwrites obs" in check(Broken)["ownership"]


def test_actions_not_copied():
    class Broken(Wrapped):
        def send(self, actions):
            super().send(actions)
            self.held = actions

        def change(self, step):
            return replace(step, obs=step.obs + self.held[:, None].astype(np.float32) * (step.obs > 2))

    assert "overwrote its action array" in check(Broken)["ownership"]


class Lenient(Wrapped):
    """Accepts everything in any order."""

    step = None

    def reset(self):
        if self.inner._order._state == "new":
            return super().reset()
        return self.last

    def send(self, actions):
        if self.inner._order._state == "idle":
            super().send(actions[: self.num_envs])

    def recv(self):
        if self.inner._order._state == "sent":
            self.step = super().recv()
        return self.step


def test_misuse_that_is_accepted():
    found = check(Lenient)["calls"]
    for words in (
        "send() before reset() is accepted",
        "recv() before reset() is accepted",
        "recv() without send() is accepted",
        "send() of one action too many is accepted",
        "a second send() without recv() is accepted",
    ):
        assert words in found


def test_misuse_with_another_exception():
    class Broken(Wrapped):
        def recv(self):
            if self.inner._order._state != "sent":
                raise KeyError("what?")
            return super().recv()

    assert "raises KeyError; use RuntimeError" in check(Broken)["calls"]


def test_second_close_fails():
    class Broken(Wrapped):
        closed = False

        def close(self):
            if self.closed:
                raise OSError("already gone")
            self.closed = True

    assert "a second close() raises OSError" in check(Broken)["calls"]


def test_an_exception_is_a_finding():
    found = check("toy:failing", kwargs={"at_step": 5})
    assert "RuntimeError: the failing environment" in found["runs"]


def test_what_cannot_be_made_is_a_configuration_error():
    with pytest.raises(ConfigError, match="no_such"):
        check_env("no_such.module:make")


@pytest.mark.parametrize("kwargs", [{"num_envs": 0}, {"steps": 0}])
def test_wrong_arguments(kwargs):
    with pytest.raises(ValueError, match="at least 1"):
        check_env("toy:counting", **kwargs)


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("toy:counting", ExitCode.FINISHED, "env_steps_per_s"),
        ("toy:failing", ExitCode.ERROR, "not sound"),
        ("toy:countin", ExitCode.BAD_CONFIGURATION, "did you mean counting"),
        ("gymnasium:Blackjack-v1", ExitCode.FINISHED, "2 [2]"),
        ("gymnasium:Blackjack-v1", ExitCode.FINISHED, "float32[45], for model.torso=mlp"),
    ],
)
def test_command(path, code, words, capsys):
    assert check_command(path, steps=20) == code
    assert words in " ".join(capsys.readouterr().out.split())


def test_every_engine_has_a_prefix():
    from hpcrl.testing.env_suite import ENGINES

    assert set(ENGINES) == {"gymnasium", "envpool", "toy", "custom"}
    assert EnvConfig(id="x", engine="toy").engine in ENGINES
