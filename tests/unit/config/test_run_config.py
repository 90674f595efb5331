import json
import sys

import pytest
from pydantic import ValidationError

from hpcrl.config import ConfigError, EnvConfig, PPOConfig, RunConfig, explain
from tests.unit.config.support import message, run_config


def ppo(**changes):
    return {"algorithm": {"name": "ppo"} | changes}


CONTRADICTIONS = {
    "too few environments": (
        {"env": {"id": "x", "num_envs": 5}, "ranks": {"actors": 3, "replay": 1}} | {"env.num_groups": 2},
        ["env.num_envs=5", "env.num_groups=2", "at least 6"],
    ),
    "too few environments for workers": (
        {"scheme": "synchronous", "env": {"id": "x", "num_envs": 2}, "ranks": {"workers": 3}},
        ["env.num_envs=2", "at least 3"],
    ),
    "batch in the synchronous scheme": (
        {"scheme": "synchronous", "ranks": {"workers": 2}} | ppo(batch_trajectories=3),
        ["algorithm.batch_trajectories=3", "null"],
    ),
    "more replay ranks than actors": (
        {"ranks": {"actors": 1, "replay": 2}},
        ["ranks.actors=1", "ranks.replay=2", "ranks.replay <= 1"],
    ),
    "more replay ranks than trajectories": (
        {"ranks": {"actors": 3, "replay": 3}} | ppo(batch_trajectories=2),
        ["algorithm.batch_trajectories=2", "ranks.replay=3"],
    ),
    "compression on a device": (
        {"ranks": {"learner_device": "cuda"}, "reduction": {"compression": "bf16"}},
        ["reduction.compression=bf16", "ranks.learner_device=cpu", "reduction.compression=none"],
    ),
    "a divided optimizer on whatever device": (
        {"ranks": {"learner_device": "auto"}, "reduction": {"shard_optimizer": True}},
        ["reduction.shard_optimizer=true", "ranks.learner_device=auto", "reduction.shard_optimizer=false"],
    ),
    "two phases by torch.distributed": (
        {"reduction": {"form": "torch", "exchange": "two_phase"}},
        ["reduction.exchange=two_phase", "reduction.form=torch", "reduction.exchange=all_gather"],
    ),
    "deterministic and loose": (
        {"deterministic": True, "lag": {"max_lag": 2}},
        ["deterministic", "lag.max_lag"],
    ),
    "deterministic and dropping": (
        {"deterministic": True, "lag": {"overdue": "drop"}},
        ["deterministic", "lag.overdue=wait"],
    ),
    "deterministic and rarely published": (
        {"deterministic": True, "lag": {"publish_every_updates": 2}},
        ["deterministic", "lag.publish_every_updates=1"],
    ),
    "deterministic without an actor": (
        {"deterministic": True, "lag": {"max_lag": 1}, "faults": {"actor_death": "continue"}},
        ["faults.actor_death=continue", "deterministic=true", "faults.actor_death=end"],
    ),
    "synchronous without a worker": (
        {"scheme": "synchronous", "faults": {"actor_death": "continue"}},
        ["faults.actor_death=continue", "scheme=synchronous", "faults.actor_death=end"],
    ),
    "gradients in step": (
        {"scheme": "synchronous", "algorithm": {"name": "a3c"}},
        ["algorithm.name=a3c", "scheme=pipeline", "algorithm.name=a2c"],
    ),
    "gradients to two learners": (
        {"algorithm": {"name": "a3c"}, "ranks": {"learners": 2}},
        ["ranks.learners=2", "algorithm.name=a3c", "ranks.learners=1"],
    ),
    "several gradients at once": (
        {"algorithm": {"name": "a3c", "batch_trajectories": 2}},
        ["algorithm.batch_trajectories=2", "algorithm.name=a3c", "batch_trajectories=1"],
    ),
    "gradients by two replay ranks": (
        {"algorithm": {"name": "a3c"}, "ranks": {"actors": 2, "replay": 2}},
        ["algorithm.batch_trajectories=1", "ranks.replay=2"],
    ),
    "gradients and moments of observations": (
        {"algorithm": {"name": "a3c"}, "model": {"normalize_observations": True}},
        ["model.normalize_observations=true", "algorithm.name=a3c", "use model.normalize_observations=false"],
    ),
    "gradients and moments of returns": (
        {"algorithm": {"name": "a3c", "normalize_returns": True}},
        ["algorithm.normalize_returns=true", "algorithm.name=a3c"],
    ),
    "scattered stacks of frames": (
        {
            "algorithm": {"name": "dqn"},
            "replay": {"sampling": "prioritized", "eviction": "lowest_priority", "frame_stack": 4},
        },
        ["replay.eviction=lowest_priority", "replay.frame_stack=4", "replay.eviction=fifo"],
    ),
    "scattered sequences": (
        {
            "algorithm": {"name": "r2d2"},
            "model": {"recurrent": "lstm"},
            "replay": {"sampling": "prioritized", "eviction": "lowest_priority"},
        },
        ["replay.eviction=lowest_priority", "algorithm.name=r2d2", "replay.eviction=fifo"],
    ),
    "replay and moments of observations": (
        {"algorithm": {"name": "dqn"}, "model": {"normalize_observations": True}},
        ["model.normalize_observations=true", "algorithm.name=dqn", "use model.normalize_observations=false"],
    ),
    "replay and moments of returns": (
        {"algorithm": {"name": "dqn", "normalize_returns": True}},
        ["algorithm.normalize_returns=true", "algorithm.name=dqn"],
    ),
    "trajectories per update of samples": (
        {"algorithm": {"name": "dqn", "batch_trajectories": 1}},
        ["algorithm.batch_trajectories=1", "algorithm.name=dqn", "algorithm.batch_size", "null"],
    ),
    "memory for single transitions": (
        {"algorithm": {"name": "dqn"}, "model": {"recurrent": "gru"}},
        ["model.recurrent=gru", "algorithm.name=dqn", "algorithm.name=r2d2", "model.recurrent=none"],
    ),
    "sequences without a memory": (
        {"algorithm": {"name": "r2d2"}, "replay": {"sampling": "prioritized"}},
        ["model.recurrent=none", "algorithm.name=r2d2", "model.recurrent=lstm", "algorithm.name=apex"],
    ),
    "a torso for a policy that is not there": (
        {"algorithm": {"name": "dqn"}, "model": {"shared_torso": False}},
        ["model.shared_torso=false", "algorithm.name=dqn", "use model.shared_torso=true"],
    ),
    "priorities for nothing": (
        {"algorithm": {"name": "apex"}},
        ["replay.sampling=uniform", "algorithm.name=apex", "replay.sampling=prioritized", "dqn"],
    ),
    "pieces of trajectories": (
        {"algorithm": {"name": "r2d2", "unroll_length": 50}},
        ["burn_in_steps=40", "trained_steps=80", "120", "unroll_length=50"],
    ),
    "steps that are only burned in": (
        {"algorithm": {"name": "r2d2", "trained_steps": 20, "burn_in_steps": 60}},
        ["trained_steps=20", "unroll_length=40", "at least as many"],
    ),
    "one torso for policy and critics": (
        {"algorithm": {"name": "sac"}},
        ["model.shared_torso=true", "algorithm.name=sac", "use model.shared_torso=false"],
    ),
    "a memory for SAC": (
        {"algorithm": {"name": "sac"}, "model": {"shared_torso": False, "recurrent": "gru"}},
        ["model.recurrent=gru", "algorithm.name=sac", "model.recurrent=none"],
    ),
    "SAC without bounds": (
        {"algorithm": {"name": "sac"}, "model": {"shared_torso": False, "action_distribution": "gaussian"}},
        ["model.action_distribution=gaussian", "algorithm.name=sac", "auto"],
    ),
    "a distribution of what is deterministic": (
        {
            "algorithm": {"name": "td3"},
            "model": {"shared_torso": False, "action_distribution": "tanh_gaussian"},
        },
        ["model.action_distribution=tanh_gaussian", "algorithm.name=td3", "auto", "exploration_noise"],
    ),
    "a deviation of what is deterministic": (
        {"algorithm": {"name": "ddpg"}, "model": {"shared_torso": False, "initial_log_std": -1}},
        ["model.initial_log_std=-1", "algorithm.name=ddpg", "exploration_noise"],
    ),
    "the aim of a temperature that stays": (
        {"algorithm": {"name": "sac", "auto_temperature": False, "target_entropy": -1}},
        ["algorithm.target_entropy=-1", "algorithm.auto_temperature=false", "initial_temperature"],
    ),
    "the step of a temperature that stays": (
        {"algorithm": {"name": "sac", "auto_temperature": False, "temperature_learning_rate": 0.1}},
        ["algorithm.temperature_learning_rate=0.1", "algorithm.auto_temperature=false"],
    ),
    "injected lag and reuse": (
        {"scheme": "synchronous", "algorithm": {"name": "impact"}, "lag": {"injection": 1, "max_lag": 3}},
        ["lag.injection=1", "algorithm.batch_uses=1", "lag.injection=0"],
    ),
    "a buffer without reuse": (
        {"algorithm": {"name": "impact", "buffer_batches": 3, "batch_uses": 1}},
        ["algorithm.buffer_batches=3", "algorithm.batch_uses=1", "use algorithm.buffer_batches=1"],
    ),
    "reuse beyond the lag": (
        {"algorithm": {"name": "impact", "buffer_batches": 2, "batch_uses": 3}, "lag": {"max_lag": 3}},
        ["lag.max_lag=3", "batch_uses=3", "buffer_batches=2", "lag.max_lag=4 or more, 5 if actors"],
    ),
    "reuse beyond the lag in step": (
        {"scheme": "synchronous", "algorithm": {"name": "impact", "batch_uses": 3}, "lag": {"max_lag": 1}},
        ["lag.max_lag=1", "batch_uses=3", "use lag.max_lag=2 or more"],
    ),
    "deterministic and loose with reuse": (
        {"deterministic": True, "algorithm": {"name": "impact", "batch_uses": 3}, "lag": {"max_lag": 4}},
        ["lag.max_lag of 0 or 1 more than the 2 updates", "not 4"],
    ),
    "published too rarely with reuse": (
        {"algorithm": {"name": "impact", "batch_uses": 3}, "lag": {"max_lag": 2, "publish_every_updates": 2}},
        ["lag.max_lag=2", "publish_every_updates - 1 = 1 more than the 2 updates"],
    ),
    "published too rarely": (
        {"lag": {"max_lag": 1, "publish_every_updates": 3}},
        ["lag.max_lag=1", "lag.publish_every_updates", "2"],
    ),
    "the clock where every update is published": (
        {"lag": {"max_lag": 1, "publish_every_seconds": 0.5}},
        ["lag.publish_every_seconds=0.5", "raise lag.publish_every_updates"],
    ),
    "the clock in a deterministic run": (
        {"deterministic": True, "lag": {"max_lag": 1, "publish_every_seconds": 0.5}},
        ["deterministic=true", "lag.publish_every_seconds=null"],
    ),
    "the clock where nothing is published": (
        {"scheme": "synchronous", "lag": {"publish_every_seconds": 0.5}},
        ["lag.publish_every_seconds=0.5", "synchronous"],
    ),
    "too rarely in spite of the clock": (
        {"lag": {"max_lag": 1, "publish_every_updates": 3, "publish_every_seconds": 0.5}},
        ["lag.max_lag=1", "lag.publish_every_updates"],
    ),
    "lag put into a pipeline": ({"lag": {"injection": 1}}, ["lag.injection=1", "scheme=synchronous"]),
    "lag put into several workers": (
        {"scheme": "synchronous", "ranks": {"workers": 2}, "lag": {"injection": 1}},
        ["lag.injection=1", "ranks.workers=2"],
    ),
    "more lag than is allowed": (
        {"scheme": "synchronous", "lag": {"injection": 3, "max_lag": 2}},
        ["lag.injection=3", "lag.max_lag=2", "raise lag.max_lag to 3"],
    ),
    "dual clip in the trust interval": (
        ppo(dual_clip=1.2, clip_epsilon=0.25),
        ["algorithm.dual_clip=1.2", "clip_epsilon", "1.25"],
    ),
    "two scales of rewards": (
        ppo(normalize_returns=True, reward_scale=0.5),
        [
            "algorithm.reward_scale=0.5 contradicts algorithm.normalize_returns=true",
            "leave reward_scale away",
        ],
    ),
    "two clips of rewards": (
        ppo(normalize_returns=True, reward_clip=1.0),
        ["algorithm.reward_clip=1 contradicts algorithm.normalize_returns=true", "normalized_reward_clip"],
    ),
    "two scales of images": (
        {"model": {"torso": "nature_cnn", "normalize_observations": True}},
        ["model.normalize_observations=true", "model.torso=nature_cnn", "leave normalize_observations false"],
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_refused_and_name_the_key(case):
    changes, parts = CONTRADICTIONS[case]
    changes = dict(changes)
    groups = changes.pop("env.num_groups", None)
    if groups:
        changes["env"] = changes["env"] | {"num_groups": groups}
    text = message(run_config, **changes)
    for part in parts:
        assert part in text


ALLOWED = {
    "just enough environments": {"env": {"id": "x", "num_envs": 6, "num_groups": 2}, "ranks": {"actors": 3}},
    "as many replay ranks as actors": {"ranks": {"actors": 2, "replay": 2}},
    "batch of every worker": {"scheme": "synchronous", "ranks": {"workers": 2}} | ppo(batch_trajectories=2),
    "deterministic": {"deterministic": True, "lag": {"max_lag": 1}},
    "strict": {"deterministic": True, "lag": {"max_lag": 0}},
    "always so in the synchronous scheme": {
        "scheme": "synchronous",
        "deterministic": True,
        "lag": {"max_lag": 5},
    },
    "published just often enough": {"lag": {"max_lag": 2, "publish_every_updates": 3}},
    "by number or by the clock": {
        "lag": {"max_lag": 2, "publish_every_updates": 3, "publish_every_seconds": 0.5}
    },
    "as much lag as is allowed": {"scheme": "synchronous", "lag": {"injection": 2, "max_lag": 2}},
    "dual clip": ppo(dual_clip=1.3, clip_epsilon=0.25),
    "everything normalized": ppo(normalize_returns=True) | {"model": {"normalize_observations": True}},
}


@pytest.mark.parametrize("case", ALLOWED)
def test_the_edge_of_what_is_allowed(case):
    run_config(**ALLOWED[case])


def test_sizes():
    run = run_config(ranks={"actors": 4, "replay": 2, "learners": 3, "workers": 7})
    assert (run.world_size, run.num_acting_ranks, run.batch_trajectories) == (9, 4, 4)
    run = run.with_overrides(["algorithm.batch_trajectories=6"])
    assert run.batch_trajectories == 6
    run = run_config(scheme="synchronous", ranks={"actors": 4, "workers": 7})
    assert (run.world_size, run.num_acting_ranks, run.batch_trajectories) == (7, 7, 7)


MINE = """
from hpcrl.config import AlgorithmConfig

class MineConfig(AlgorithmConfig):
    \"\"\"Mine.\"\"\"
    boldness: float = 0.5
    \"\"\"More is bolder.\"\"\"
    layers: tuple[int, ...] = (1, 2)
    \"\"\"Layers.\"\"\"

class Mine:
    Config = MineConfig

class NoConfig:
    pass

class OtherConfig:
    Config = dict
"""


@pytest.fixture
def user_package(tmp_path, monkeypatch):
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage/__init__.py").write_text("")
    (tmp_path / "mypackage/mine.py").write_text(MINE)
    (tmp_path / "mypackage/broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypackage"]:
        del sys.modules[name]


@pytest.mark.usefixtures("user_package")
class TestUserAlgorithm:
    def test_its_own_config_is_used(self):
        run = run_config(algorithm={"name": "mypackage.mine:Mine", "boldness": 0.75, "gamma": 0.5})
        assert type(run.algorithm).__name__ == "MineConfig"
        assert (run.algorithm.boldness, run.algorithm.gamma, run.algorithm.layers) == (0.75, 0.5, (1, 2))
        assert RunConfig.parse(json.loads(run.to_json())) == run
        assert run.with_overrides(["algorithm.boldness=1"]).algorithm.boldness == 1

    def test_its_keys_are_checked(self):
        text = message(run_config, algorithm={"name": "mypackage.mine:Mine", "bolness": 1})
        assert "unknown key 'algorithm.bolness'; did you mean boldness" in text

    @pytest.mark.parametrize(
        ("name", "part"),
        [
            ("mypackage.mine:Nobody", "Nobody"),
            ("mypackage.nowhere:Mine", "nowhere"),
            ("mypackage.broken:Mine", "ZeroDivisionError"),
            ("mypackage.mine:NoConfig", "no Config class"),
            ("mypackage.mine:OtherConfig", "no Config class"),
            ("mypackage.mine", "td3 or package.module:name"),
            (":Mine", "td3 or package.module:name"),
            ("imapla", "td3 or package.module:name"),
            ("", "td3 or package.module:name"),
        ],
    )
    def test_what_cannot_be_had_is_named(self, name, part):
        text = message(run_config, algorithm={"name": name})
        assert f"algorithm.name={name!r}" in text and part in text

    @pytest.mark.parametrize("name", [5, None, ["ppo"], {"a": 1}])
    def test_a_name_is_a_string(self, name):
        assert f"algorithm.name={name!r}" in message(run_config, algorithm={"name": name})


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (
            lambda: EnvConfig(idd="x", id="y"),
            ["unknown key 'EnvConfig.idd'", "did you mean id", "num_threads"],
        ),
        (lambda: EnvConfig(id="x", num_envs=0), ["EnvConfig.num_envs=0"]),
        (lambda: PPOConfig(clip=1), ["unknown key 'PPOConfig.clip'", "clip_epsilon"]),
        (lambda: PPOConfig(dual_clip=1.1), ["algorithm.dual_clip=1.1"]),
    ],
)
def test_what_a_constructor_refuses_can_be_explained(make, parts):
    with pytest.raises(ValidationError) as caught:
        make()
    assert all(part in explain(caught.value) for part in parts)


def test_package_says_what_it_exports():
    import hpcrl.config

    assert sorted(hpcrl.config.__all__) == hpcrl.config.__all__
    assert all(hasattr(hpcrl.config, name) for name in hpcrl.config.__all__)


@pytest.mark.parametrize(("minibatches", "accepted"), [(64, True), (65, False)])
def test_no_more_minibatches_than_env_steps(minibatches, accepted):
    values = {
        "name": "x",
        "scheme": "synchronous",
        "env": {"id": "x", "num_envs": 8},
        "algorithm": {"name": "ppo", "unroll_length": 8, "num_minibatches": minibatches},
    }
    if accepted:
        RunConfig.parse(values)
    else:
        with pytest.raises(ConfigError, match=r"algorithm\.num_minibatches=65 is more than the 64 env_steps"):
            RunConfig.parse(values)


@pytest.mark.parametrize("key", ["seed", "evaluation.seed", "model.hidden_sizes"])
def test_numbers_that_nothing_can_hold_are_refused(key):
    config = RunConfig.parse({"name": "x", "env": {"id": "x"}, "algorithm": {"name": "impala"}})
    value = "[-5]" if key.startswith("model") else str(2**63)
    with pytest.raises(ConfigError, match=key):
        config.with_overrides([f"{key}={value}"])


@pytest.mark.parametrize(
    ("settings", "batch", "factor"),
    [
        ({"name": "impala"}, 8 * 32, 1.0),
        ({"name": "impala", "learning_rate_scaling": "linear", "reference_batch": 64}, 256, 4.0),
        ({"name": "a2c", "learning_rate_scaling": "sqrt", "reference_batch": 64}, 256, 2.0),
        ({"name": "impala", "learning_rate_scaling": "sqrt", "reference_batch": 1024}, 256, 0.5),
        (
            {
                "name": "impala",
                "learning_rate_scaling": "linear",
                "reference_batch": 64,
                "batch_trajectories": 6,
            },
            768,
            12.0,
        ),
        (
            {"name": "ppo", "num_minibatches": 2, "learning_rate_scaling": "linear", "reference_batch": 64},
            128,
            2.0,
        ),
    ],
)
def test_the_learning_rate_follows_the_env_steps_of_a_gradient_step(settings, batch, factor):
    config = run_config(ranks={"actors": 2}, algorithm={"learning_rate": 1e-3, **settings})
    assert config.gradient_batch == batch
    scaled = config.algorithm.scale_learning_rate(batch)
    assert scaled.learning_rate == pytest.approx(1e-3 * factor)
    line = config.algorithm.describe_learning_rate(batch)
    assert f"learning rate {1e-3 * factor:.4g}" in line and f"{batch} env_steps per gradient step" in line
    assert factor == 1 or f"({batch} / {settings['reference_batch']:,})" in line


@pytest.mark.parametrize("settings", [{"learning_rate_scaling": "sqrt"}, {"reference_batch": 64}])
def test_scaling_and_its_reference_go_together(settings):
    text = message(run_config, algorithm={"name": "impala"} | settings)
    assert "algorithm.learning_rate_scaling" in text and "algorithm.reference_batch" in text


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_float16_is_for_gpus(device):
    model, ranks = {"precision": "float16"}, {"learner_device": device}
    text = message(run_config, model=model, ranks=ranks)
    assert f"model.precision=float16 is not there with ranks.learner_device={device}" in text
    assert "model.precision=bfloat16" in text
    assert run_config(model=model, ranks={"learner_device": "cuda"}).model.precision == "float16"
    assert run_config(model={"precision": "bfloat16"}, ranks=ranks).model.precision == "bfloat16"


def test_channels_last_needs_convolutions():
    assert "model.channels_last=true has no effect" in message(run_config, model={"channels_last": True})
    assert run_config(model={"channels_last": True, "torso": "nature_cnn"}).model.channels_last
