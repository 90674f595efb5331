import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpcrl.config import (
    AlgorithmConfig,
    BudgetConfig,
    CommConfig,
    Config,
    ConfigError,
    EnvConfig,
    EvaluationConfig,
    ImpalaConfig,
    LagConfig,
    LogConfig,
    ModelConfig,
    PPOConfig,
    RanksConfig,
    RunConfig,
    StorageConfig,
    explain,
    parse_value,
)

MINIMAL = {"name": "toy", "env": {"id": "CartPole-v1"}, "algorithm": {"name": "ppo"}}

# every section with every field away from its default
SECTIONS = [
    EnvConfig(
        id="Pong-v5",
        engine="envpool",
        num_envs=12,
        num_groups=2,
        vectorization="async",
        num_threads=3,
        kwargs={"stack_num": 4, "nested": {"a": [1, 2.5, None, True, "x"]}},
    ),
    ModelConfig(
        torso="nature_cnn",
        hidden_sizes=(512, 256),
        activation="relu",
        shared_torso=False,
        initial_log_std=-0.5,
    ),
    ImpalaConfig(
        unroll_length=20,
        batch_trajectories=6,
        gamma=0.997,
        learning_rate=1e-4,
        anneal_learning_rate=True,
        adam_epsilon=1e-8,
        max_grad_norm=40.0,
        entropy_coefficient=0.0,
        value_coefficient=1.0,
        reward_clip=1.0,
        reward_scale=0.5,
        max_nonfinite_updates=5,
        rho_bar=1.5,
        c_bar=1.25,
        pg_rho_bar=2.0,
        lambda_=0.9,
    ),
    PPOConfig(
        unroll_length=64,
        batch_trajectories=2,
        gamma=0.9,
        learning_rate=1e-3,
        anneal_learning_rate=True,
        adam_epsilon=1e-8,
        max_grad_norm=1.0,
        entropy_coefficient=0.0,
        value_coefficient=1.0,
        reward_clip=10.0,
        reward_scale=2.0,
        max_nonfinite_updates=1,
        gae_lambda=0.9,
        clip_epsilon=0.1,
        value_clip=0.2,
        dual_clip=3.0,
        epochs=1,
        num_minibatches=1,
        normalize_advantages=False,
        target_kl=0.01,
    ),
    RanksConfig(actors=5, replay=2, learners=3, workers=4),
    LagConfig(max_lag=8, overdue="drop", publish_every_updates=3),
    BudgetConfig(env_steps=2**40),
    EvaluationConfig(episodes=0, seed=1, greedy=False, max_episode_steps=100),
    StorageConfig(runs_dir="elsewhere", run_dir="here", flush_interval_s=0.25),
    CommConfig(slots=4, chunk_bytes=1024, wait="spin", checksum=True, debug=True),
    LogConfig(progress_interval_s=0.5, level="debug"),
]
BY_TYPE = {type(section): section for section in SECTIONS}
SECTION_NAMES = [
    "env",
    "model",
    "algorithm",
    "ranks",
    "lag",
    "budget",
    "evaluation",
    "storage",
    "comm",
    "log",
]


def run_config(**changes):
    return RunConfig.parse(MINIMAL | changes)


def message(function, *arguments, **keywords):
    with pytest.raises(ConfigError) as caught:
        function(*arguments, **keywords)
    return str(caught.value)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: type(section).__name__)
class TestSections:
    def test_round_trip(self, section):
        again = type(section).parse(json.loads(section.to_json()))
        assert again == section
        assert again.to_json() == section.to_json()

    def test_the_example_has_no_default_left(self, section):
        kept = [
            name
            for name, field in type(section).model_fields.items()
            if name != "name" and getattr(section, name) == field.get_default(call_default_factory=True)
        ]
        assert kept == []

    def test_unknown_keys_are_refused(self, section):
        text = message(type(section).parse, section.to_dict() | {"bogus": 1}, "here")
        assert "unknown key 'here.bogus'" in text
        assert all(name in text for name in type(section).model_fields)

    def test_frozen(self, section):
        with pytest.raises(ValidationError):
            section.bogus = 1
        name = next(iter(type(section).model_fields))
        with pytest.raises(ValidationError):
            setattr(section, name, getattr(section, name))


def all_sections():
    found = [Config]
    for section in found:
        found += [cls for cls in section.__subclasses__() if cls.__module__.startswith("hpcrl.")]
    return found[1:]


def test_the_sections_are_all_tested():
    assert {*BY_TYPE, AlgorithmConfig, RunConfig} == set(all_sections())


@pytest.mark.parametrize("section", all_sections(), ids=lambda section: section.__name__)
def test_every_field_has_a_docstring(section):
    assert section.__doc__
    bare = [name for name, field in section.model_fields.items() if not field.description]
    if section in (ImpalaConfig, PPOConfig):
        bare.remove("name")  # documented at AlgorithmConfig
    if section is RunConfig:
        bare = [name for name in bare if name not in SECTION_NAMES]  # a section's class says what it is
    assert bare == []


@pytest.mark.parametrize("algorithm", [BY_TYPE[ImpalaConfig], BY_TYPE[PPOConfig]], ids=["impala", "ppo"])
def test_a_whole_run_round_trips(algorithm):
    run = RunConfig(
        name="All.of_it-1",
        scheme="pipeline",
        seed=2**40,
        env=BY_TYPE[EnvConfig],
        model=BY_TYPE[ModelConfig],
        algorithm=algorithm,
        ranks=BY_TYPE[RanksConfig],
        lag=BY_TYPE[LagConfig],
        budget=BY_TYPE[BudgetConfig],
        evaluation=BY_TYPE[EvaluationConfig],
        storage=BY_TYPE[StorageConfig],
        comm=BY_TYPE[CommConfig],
        log=BY_TYPE[LogConfig],
    )
    again = RunConfig.parse(json.loads(run.to_json()))
    assert again == run
    assert type(again.algorithm) is type(algorithm)
    assert again.to_json() == run.to_json()
    assert run.with_overrides([]) == run


class TestOverrides:
    @pytest.mark.parametrize(
        ("assignment", "section", "name", "value"),
        [
            ("env.num_envs=16", "env", "num_envs", 16),
            ("env.num_envs = 16", "env", "num_envs", 16),
            ("algorithm.learning_rate=1e-5", "algorithm", "learning_rate", 1e-5),
            ("algorithm.target_kl=0.1", "algorithm", "target_kl", 0.1),
            ("algorithm.target_kl=null", "algorithm", "target_kl", None),
            ("algorithm.target_kl=None", "algorithm", "target_kl", None),
            ("model.shared_torso=false", "model", "shared_torso", False),
            ("model.shared_torso=False", "model", "shared_torso", False),
            ("comm.debug=True", "comm", "debug", True),
            ("model.hidden_sizes=[8,9]", "model", "hidden_sizes", (8, 9)),
            ("model.hidden_sizes=[]", "model", "hidden_sizes", ()),
            ("env.id=Pong-v5", "env", "id", "Pong-v5"),
            ("env.id=a=b", "env", "id", "a=b"),
            ('storage.run_dir="7"', "storage", "run_dir", "7"),
            ("budget.env_steps=1e6", "budget", "env_steps", 1_000_000),
            ("env.kwargs.stack_num=4", "env", "kwargs", {"stack_num": 4}),
            ('env.kwargs={"a":1}', "env", "kwargs", {"a": 1}),
        ],
    )
    def test_one_key(self, assignment, section, name, value):
        changed = run_config().with_overrides([assignment])
        assert getattr(getattr(changed, section), name) == value
        before, after = run_config().to_dict(), changed.to_dict()
        del before[section][name], after[section][name]
        assert before == after

    def test_top_level_and_order(self):
        changed = run_config().with_overrides(["seed=3", "name=other", "seed=4"])
        assert (changed.seed, changed.name) == (4, "other")

    def test_they_are_judged_together(self):
        both = ["lag.publish_every_updates=4", "lag.max_lag=3"]
        assert run_config().with_overrides(both) == run_config().with_overrides(both[::-1])

    @pytest.mark.parametrize(
        ("assignment", "parts"),
        [
            (
                "env.num_env=3",
                ["'env.num_env'", "did you mean num_envs", "Valid keys of env:", "vectorization"],
            ),
            (
                "algorithm.learning_rat=1",
                ["'algorithm.learning_rat'", "did you mean learning_rate", "gae_lambda"],
            ),
            ("envs.id=x", ["'envs'", "did you mean env", "Valid keys:", "storage"]),
            ("zzz=1", ["unknown key 'zzz' Valid keys:", "algorithm, budget"]),
            ("env.num_envs.x=3", ["env.num_envs is a value, not a section"]),
            ("env.num_envs", ["not of the form section.key=value"]),
            ("=3", ["not of the form section.key=value"]),
            ("env=3", ["env=3"]),
            ("env.num_envs=0", ["env.num_envs=0", "greater than or equal to 1"]),
            ("env.num_envs=", ["env.num_envs=''"]),
            ("env.num_envs=2.5", ["env.num_envs=2.5"]),
            ("algorithm.gamma=NaN", ["algorithm.gamma=nan", "finite"]),
            ("algorithm.gamma=1.01", ["algorithm.gamma=1.01", "less than or equal to 1"]),
            ("algorithm.name=7", ["algorithm.name=7"]),
        ],
    )
    def test_refused_with_the_repair(self, assignment, parts):
        text = message(run_config().with_overrides, [assignment])
        for part in parts:
            assert part in text

    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
    def test_json_is_json(self, value):
        assert parse_value(json.dumps(value)) == value

    @pytest.mark.parametrize("text", ["", "CartPole-v1", "1.2.3", "[1", "yes", "-", "true story"])
    def test_anything_else_is_itself(self, text):
        assert parse_value(text) == text


class TestUnknownKeysInFiles:
    @pytest.mark.parametrize("section", SECTION_NAMES)
    def test_nested_key_of_every_section(self, section):
        values = run_config().to_dict()[section]
        text = message(run_config, **{section: values | {"bogus": 1}})
        assert f"unknown key '{section}.bogus'" in text and f"Valid keys of {section}:" in text
        assert all(name in text for name in values)

    def test_in_the_algorithm(self):
        text = message(run_config, algorithm={"name": "impala", "rho_baz": 1})
        assert "unknown key 'algorithm.rho_baz'; did you mean rho_bar" in text

    def test_in_the_environment(self):
        text = message(run_config, env={"id": "x", "engin": "toy"})
        assert "unknown key 'env.engin'; did you mean engine" in text

    def test_every_wrong_key_has_its_line(self):
        text = message(run_config, lag={"max_lagg": 1}, comm={"slots": 1}, seed=-1)
        assert len(text.splitlines()) == 3
        assert all(part in text for part in ("lag.max_lagg", "comm.slots=1", "seed=-1"))

    def test_missing_sections_are_named(self):
        text = message(RunConfig.parse, {"name": "x"})
        assert "env" in text and "algorithm" in text


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
    "published too rarely": (
        {"lag": {"max_lag": 1, "publish_every_updates": 3}},
        ["lag.max_lag=1", "lag.publish_every_updates", "2"],
    ),
    "dual clip in the trust interval": (
        ppo(dual_clip=1.2, clip_epsilon=0.25),
        ["algorithm.dual_clip=1.2", "clip_epsilon", "1.25"],
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
    "dual clip": ppo(dual_clip=1.3, clip_epsilon=0.25),
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
            ("mypackage.mine", "impala, ppo or package.module:name"),
            (":Mine", "impala, ppo or package.module:name"),
            ("imapla", "impala, ppo or package.module:name"),
            ("", "impala, ppo or package.module:name"),
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
