import json
import sys
from pathlib import Path

import pytest

from hpcrl.config import ConfigError, RunConfig
from hpcrl.launch.recipes import load_config

TOP = Path(__file__).parents[3]

FILE = """
from hpcrl.config import BudgetConfig, ConfigError, EnvConfig, PPOConfig, RanksConfig, RunConfig

helper = 3

class Helper:
    pass

def small() -> RunConfig:
    return RunConfig(name="small", env=EnvConfig(id="CartPole-v1"), algorithm=PPOConfig())

def large() -> RunConfig:
    config = small()
    return config.with_overrides(["env.num_envs=64", "ranks.actors=4"])

def wrong_type():
    return {"name": "small"}

def nothing():
    pass

def unknown_key():
    return RunConfig(name="x", env=EnvConfig(id="CartPole-v1", num_env=3), algorithm=PPOConfig())

def wrong_value():
    return RunConfig(name="x", env=EnvConfig(id="CartPole-v1", num_envs=0), algorithm=PPOConfig())

def contradiction():
    return RunConfig(name="x", env=EnvConfig(id="x"), algorithm=PPOConfig(), ranks=RanksConfig(actors=9))

def raises():
    return {}["missing"]

def raises_config_error():
    raise ConfigError("this one is for tomorrow")

def needs_arguments(size):
    return small()

def _private():
    return small()
"""
RAISING_LINE = FILE.splitlines().index('    return {}["missing"]') + 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "study.py").write_text(FILE)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/__init__.py").write_text("")
    (tmp_path / "studies/first.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "studies"]:
        del sys.modules[name]


@pytest.fixture
def small(folder):
    return load_config("study.py:small")


def refusal(recipe, *arguments):
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, *arguments)
    return str(caught.value)


class TestForms:
    def test_function_in_a_file(self, small):
        assert (small.name, small.env.id, small.env.num_envs) == ("small", "CartPole-v1", 8)
        assert load_config("./study.py:large").ranks.actors == 4

    def test_absolute_path(self, folder, small):
        assert load_config(f"{folder}/study.py:small") == small

    def test_function_in_a_package(self, small):
        assert load_config("studies.first:small") == small

    def test_resolved_json_runs_again(self, folder, small):
        for config in (small, load_config("study.py:large", ["algorithm.dual_clip=3", "seed=9"])):
            (folder / "config.json").write_text(config.to_json())
            assert load_config("config.json") == config
            assert load_config(str(folder)) == config  # a run directory
            assert load_config("config.json").to_json() == config.to_json()

    @pytest.mark.parametrize("suffix", ["yaml", "yml"])
    def test_yaml_with_nested_and_dotted_overrides(self, folder, small, suffix):
        (folder / f"run.{suffix}").write_text(
            "recipe: study.py:small\n"
            "seed: 4\n"
            "env.num_envs: 16\n"
            "algorithm:\n"
            "  learning_rate: 0.001\n"
            "  target_kl: null\n"
            "model: {hidden_sizes: [8, 9], shared_torso: false}\n"
            "env:\n"
            "  kwargs: {render_mode: null, deep: {a: [1, 2]}}\n"
        )
        loaded = load_config(f"run.{suffix}", ["seed=5"])
        assert loaded == small.with_overrides(
            [
                "seed=5",
                "env.num_envs=16",
                "algorithm.learning_rate=0.001",
                "model.hidden_sizes=[8,9]",
                "model.shared_torso=false",
                'env.kwargs={"render_mode": null, "deep": {"a": [1, 2]}}',
            ]
        )

    def test_yaml_on_yaml(self, folder, small):
        (folder / "a.yaml").write_text("recipe: study.py:small\nseed: 1\nlag.max_lag: 3\n")
        (folder / "b.yaml").write_text("recipe: a.yaml\nseed: 2\n")
        assert load_config("b.yaml") == small.with_overrides(["seed=2", "lag.max_lag=3"])

    def test_yaml_overrides_are_judged_together(self, folder):
        (folder / "run.yaml").write_text(
            "recipe: study.py:small\nlag:\n  publish_every_updates: 5\n  max_lag: 4\n"
        )
        assert load_config("run.yaml").lag.publish_every_updates == 5

    def test_overrides_then_ranks(self, folder):
        config = load_config("study.py:small", ["ranks.learners=2"], 7)
        assert (config.world_size, config.ranks.actors) == (7, 4)
        assert load_config("study.py:small", ["scheme=synchronous"], 5).ranks.workers == 5


@pytest.mark.usefixtures("folder")
class TestErrors:
    def test_missing_file_with_a_near_match(self):
        text = refusal("studdy.py:small")
        assert (
            "'studdy.py' does not exist; did you mean study.py?" in text and "package.module:function" in text
        )

    def test_missing_file_without_one(self):
        text = refusal("elsewhere/nothing.py:small")
        assert "'elsewhere/nothing.py' does not exist" in text and "did you mean" not in text

    @pytest.mark.parametrize("function", ["smal", "_private", "helper", ""])
    def test_missing_function_lists_the_functions(self, function):
        text = refusal(f"study.py:{function}")
        assert f"no function {function!r}" in text
        assert "small, large" in text and "_private," not in text and "helper," not in text

    def test_missing_function_of_a_module(self):
        assert "studies.first" in refusal("studies.first:smal") and "smal" in refusal("studies.first:smal")

    def test_missing_module(self):
        text = refusal("studies.second:small")
        assert "studies.second" in text and "package.module:name" in text

    @pytest.mark.parametrize("function", ["wrong_type", "nothing"])
    @pytest.mark.parametrize("form", ["study.py:{}", "studies.first:{}"])
    def test_wrong_type(self, form, function):
        kind = {"wrong_type": "dict", "nothing": "NoneType"}[function]
        text = refusal(form.format(function))
        assert f"{form.format(function)!r} returned {kind}, not a hpcrl.config.RunConfig" in text

    @pytest.mark.parametrize(
        ("function", "parts"),
        [
            (
                "unknown_key",
                ["unknown key 'EnvConfig.num_env'", "did you mean num_envs", "Valid keys of EnvConfig"],
            ),
            ("wrong_value", ["EnvConfig.num_envs=0", "greater than or equal to 1"]),
            ("contradiction", ["env.num_envs=8", "at least 9"]),
            ("raises", ["fails: KeyError: 'missing'", f"line {RAISING_LINE}"]),
            ("raises_config_error", ["this one is for tomorrow"]),
            ("needs_arguments", ["fails: TypeError", "size"]),
        ],
    )
    @pytest.mark.parametrize("form", ["study.py:{}", "studies.first:{}"])
    def test_function_that_fails(self, form, function, parts):
        text = refusal(form.format(function))
        assert all(part in text for part in parts)
        assert function == "raises_config_error" or form.format(function) in text

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            ("1 / 0", "ZeroDivisionError"),
            ("def f(:", "SyntaxError"),
            ("import no_such_module", "ModuleNotFoundError"),
            ("from hpcrl.config import LagConfig\nx = LagConfig(max_lagg=1)", "did you mean max_lag"),
        ],
    )
    def test_file_that_raises(self, folder, content, part):
        (folder / "bad.py").write_text(content + "\n")
        text = refusal("bad.py:small")
        assert "recipe file 'bad.py'" in text and part in text

    @pytest.mark.parametrize("recipe", ["small", ":small"])
    def test_unknown_form(self, recipe):
        text = refusal(recipe)
        assert f"recipe {recipe!r}" in text and "path/to/file.py:function" in text and "run directory" in text

    @pytest.mark.parametrize(
        ("name", "content", "parts"),
        [
            ("a.json", "{", ["a.json is not valid json"]),
            ("a.json", "[1]", ["a.json must hold a mapping", "list"]),
            ("a.json", "", ["a.json is not valid json"]),
            ("a.json", json.dumps({"name": "x"}), ["env", "algorithm"]),
            ("a.yaml", "a: [", ["a.yaml is not valid yaml"]),
            ("a.yaml", "- 1", ["a.yaml must hold a mapping", "list"]),
            ("a.yaml", "", ["a.yaml must hold a mapping", "NoneType"]),
            ("a.yaml", "seed: 3", ["needs a line `recipe: ...`"]),
            ("a.yaml", "recipe: 3", ["needs a line `recipe: ...`"]),
            ("a.yaml", "recipe: study.py:smal", ["no function 'smal'"]),
            (
                "a.yaml",
                "recipe: study.py:small\nenv: {num_env: 3}",
                ["'env.num_env'", "did you mean num_envs"],
            ),
            ("a.yaml", "recipe: study.py:small\nenv.num_env: 3", ["'env.num_env'", "did you mean num_envs"]),
            ("a.yaml", "recipe: study.py:small\nlagg: {max_lag: 3}", ["'lagg'", "did you mean lag"]),
            ("a.yaml", "recipe: study.py:small\nenv: 3", ["env=3"]),
            ("a.yaml", "recipe: study.py:small\nenv:", ["env=None"]),
            ("a.yaml", "recipe: study.py:small\nseed: {x: 3}", ["seed is a value, not a section"]),
        ],
    )
    def test_wrong_files(self, folder, name, content, parts):
        (folder / name).write_text(content)
        text = refusal(name)
        assert all(part in text for part in parts)

    @pytest.mark.parametrize("recipe", ["missing.json", "missing.yaml"])
    def test_missing_data_files(self, recipe):
        text = refusal(recipe)
        assert f"{recipe} cannot be read" in text and "a recipe is" in text

    def test_a_folder_that_holds_no_run(self, folder):
        (folder / "empty").mkdir()
        assert "empty/config.json cannot be read" in refusal("empty")

    def test_yaml_that_names_itself(self, folder):
        (folder / "a.yaml").write_text("recipe: a.yaml\n")
        assert "a.yaml names itself" in refusal("a.yaml")
        (folder / "b.yaml").write_text("recipe: c.yaml\n")
        (folder / "c.yaml").write_text("recipe: b.yaml\n")
        assert "b.yaml names itself" in refusal("b.yaml")

    def test_overrides_are_checked(self):
        assert "did you mean num_envs" in refusal("study.py:small", ["env.num_env=3"])

    def test_ranks_are_checked(self):
        assert "use at least 3 ranks" in refusal("study.py:small", [], 2)


def test_recipes_of_two_files_with_one_name_do_not_mix(folder):
    (folder / "other").mkdir()
    (folder / "other/study.py").write_text(FILE.replace('name="small"', 'name="other"'))
    assert load_config("study.py:small").name == "small"
    assert load_config("other/study.py:small").name == "other"
    assert isinstance(load_config("study.py:small"), RunConfig)


@pytest.mark.parametrize("named", [True, False])
def test_a_finished_runs_configuration_runs_again_in_a_new_directory(tmp_path, named):
    run_dir = tmp_path / "first"
    run_dir.mkdir()
    values = load_config(f"{TOP / 'jobs' / 'cartpole.py'}:ppo").to_dict()
    values["storage"]["run_dir"] = str(run_dir) if named else str(tmp_path / "another")
    (run_dir / "config.json").write_text(json.dumps(values))
    for recipe in (run_dir, run_dir / "config.json"):
        run_dir_now = load_config(str(recipe)).storage.run_dir
        assert run_dir_now == (None if named else str(tmp_path / "another"))
