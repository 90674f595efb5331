import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.config import RunConfig, parse_value
from tests.unit.config.support import SECTION_NAMES, message, run_config


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
            ("zzz=1", ["unknown key 'zzz'. Valid keys:", "algorithm, budget"]),
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
