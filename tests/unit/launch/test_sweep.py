"""Which runs a sweep has, and what it refuses; test_batch.py runs the script."""

from pathlib import Path

import pytest

from hpcrl.config import ConfigError, RunConfig
from hpcrl.launch.sweep import combine, parse_sweep
from tests.system.support import TOY

RECIPE = RunConfig.parse(TOY | {"name": "x"})


def runs(axes, overrides=(), num_ranks=None):
    return combine(RECIPE, overrides, num_ranks, axes)


@pytest.mark.parametrize(
    ("sweep", "seeds", "axes", "at_once"),
    [
        ((), None, {}, None),
        (("a.b=1e-3, 3e-4", "c=x"), None, {"a.b": ["1e-3", "3e-4"], "c": ["x"]}, None),
        (("a=[64,64],[8]",), None, {"a": ["[64,64]", "[8]"]}, None),
        (('a={"b": "],"},"c,d"',), None, {"a": ['{"b": "],"}', '"c,d"']}, None),
        (("a=1",), "0-2", {"a": ["1"], "seed": ["0", "1", "2"]}, None),
        ((), "7,1-5:2%2", {"seed": ["7", "1", "3", "5"]}, 2),
    ],
)
def test_the_forms(sweep, seeds, axes, at_once):
    parsed = parse_sweep(sweep, seeds)
    assert parsed == (axes, at_once) and list(parsed[0]) == list(axes)


@pytest.mark.parametrize(
    ("sweep", "seeds", "part"),
    [
        (("a.b",), None, "'a.b' is not of the form section.key=value,value"),
        (("=1",), None, "'=1' is not of the form"),
        (("a=1,,2",), None, "empty value"),
        (("a=",), None, "empty value"),
        (("a=1", "a=2"), None, "a=... is there twice"),
        (("seed=1",), "0-4", "--sweep seed=... and --seeds contradict"),
        ((), "0..4", "--seeds '0..4'"),
        ((), "4-0", "--seeds 4-0 is 0 runs"),
        ((), "0-4:0", "steps of 0"),
        ((), "0-999999999999", "1000000000000 runs; use 1 to 10000"),
    ],
)
def test_other_forms_are_refused(sweep, seeds, part):
    with pytest.raises(ConfigError) as error:
        parse_sweep(sweep, seeds)
    assert part in str(error.value)


def test_every_combination_in_order():
    found = runs({"algorithm.learning_rate": ["1e-3", "3e-4"], "seed": ["0", "5"]}, ["budget.env_steps=99"])
    assert [one.assignments[::-1] for one in found] == [
        ("seed=0", "algorithm.learning_rate=1e-3"),
        ("seed=5", "algorithm.learning_rate=1e-3"),
        ("seed=0", "algorithm.learning_rate=3e-4"),
        ("seed=5", "algorithm.learning_rate=3e-4"),
    ]
    settings = [(one.config.algorithm.learning_rate, one.config.seed) for one in found]
    assert settings == [(0.001, 0), (0.001, 5), (0.0003, 0), (0.0003, 5)]
    assert {one.config.budget.env_steps for one in found} == {99}
    assert [one.run_name("7") for one in found][1:3] == [
        "x-learning_rate=1e-3-5-7",
        "x-learning_rate=3e-4-0-7",
    ]


def test_without_a_sweep_there_is_one_run():
    (one,) = runs({}, ["seed=4"])
    assert (one.assignments, one.config.seed, one.run_name("7")) == ((), 4, "x-4-7")


def test_values_of_python():
    found = runs({"seed": range(2), "deterministic": [True], "model.hidden_sizes": [(8, 8), [4]]})
    assert [one.config.model.hidden_sizes for one in found] == [(8, 8), (4,)] * 2
    assert {one.config.deterministic for one in found} == {True}
    assert found[0].run_name("7") == "x-deterministic=True,hidden_sizes=8_8-0-7"


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        ({"name": ["a", "b"]}, ["a-0-7", "b-0-7"]),
        ({"env.kwargs.x": ["1"], "env.kwargs.y": ["2"]}, ["x-x=1,y=2-0-7"]),
        ({"env.kwargs.x": ["1"], "model.x": ["2"]}, ["x-env.kwargs.x=1,model.x=2-0-7"]),
        ({"env.kwargs.x": ["a/b", "a b"]}, ["x-task0-0-7", "x-task1-0-7"]),
        ({"env.kwargs.x": ["y" * 300]}, ["x-task0-0-7"]),
    ],
    ids=["the name itself", "two keys", "keys that end alike", "values that look alike", "too long"],
)
def test_names_of_run_directories(axes, names, monkeypatch):
    """Safe in file systems, different from each other, and as telling as that allows."""
    if "model.x" in axes:  # there is no such pair of keys in the toy recipe
        monkeypatch.setattr("hpcrl.launch.sweep.load_config", lambda *_: RECIPE)
    assert [one.run_name("7") for one in runs(axes)] == names


@pytest.mark.parametrize(
    ("axes", "how", "part"),
    [
        (
            {"seed": ["1"], "algorithm.learning_rate": ["1e-3", "much"]},
            {},
            "with seed=1 algorithm.learning_rate=much: algorithm.learning_rate='much'",
        ),
        ({"algorithm.learning_rat": ["1"]}, {}, "unknown key 'algorithm.learning_rat'; did you mean"),
        ({"seed": ["1", "2"]}, {"overrides": ["seed = 3"]}, "seed is set and swept"),
        ({"seed": ["1", "2"]}, {"overrides": ["storage.run_dir=y"]}, "'y' is one directory for all runs"),
        ({"storage.run_dir": ["y", "z"]}, {}, "storage.run_dir is each run's own"),
        ({"algorithm.learning_rate": ["0.001", "1e-3"]}, {}, "learning_rate=1e-3 are the same run"),
        ({"ranks.actors": ["1", "2"]}, {}, "3 ranks with ranks.actors=1, 4 with ranks.actors=2"),
        ({"seed": []}, {}, "the sweep is 0 runs"),
        ({"seed": range(101), "env.kwargs.x": range(100)}, {}, "the sweep is 10100 runs; use 1 to 10000"),
    ],
)
def test_what_is_refused(axes, how, part):
    with pytest.raises(ConfigError) as error:
        runs(axes, **how)
    assert part in str(error.value)


def test_ranks_may_differ_in_role_where_their_number_is_given():
    found = runs({"ranks.learners": ["1", "2"]}, num_ranks=5)
    assert [(one.config.ranks.actors, one.config.world_size) for one in found] == [(3, 5), (2, 5)]


def test_the_recipe_is_read_once(tmp_path):
    """What it does, as reading files, is not done for every combination."""
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "from pathlib import Path\n"
        "from hpcrl.config import RunConfig\n"
        f"def run():\n    Path({str(tmp_path / 'reads')!r}).open('a').write('x')\n"
        f"    return RunConfig.parse({TOY!r})\n"
    )
    combine(f"{recipe}:run", [], None, {"seed": range(3)})
    assert Path(tmp_path / "reads").read_text() == "x"
