import io
import json

import pytest
from rich.console import Console

from hpcrl.bench import loop
from hpcrl.bench.ceilings import MEASUREMENTS
from hpcrl.bench.loop import bench_loop, render, summarize
from hpcrl.config import ConfigError, EnvConfig, ImpalaConfig, ModelConfig, RunConfig


def run_config(env_id="CartPole-v1", torso="mlp"):
    return RunConfig(
        name="x",
        seed=7,
        env=EnvConfig(id=env_id, engine="envpool"),
        model=ModelConfig(torso=torso),
        algorithm=ImpalaConfig(),
    )


def raw_round(end_to_end, reference, policy, updates):
    ceilings = {
        "environment_engine": {},
        "environment_and_policy": {"env_steps_per_s": policy},
        "updates": {"env_steps_per_s": updates},
    }
    return {
        "end_to_end": {"env_steps_per_s": end_to_end},
        "reference": {"env_steps_per_s": reference},
        "ceilings": ceilings,
    }


def test_torsos_that_the_reference_has_not_are_refused():
    with pytest.raises(ConfigError, match=r"model\.torso=impala_resnet is none"):
        bench_loop(run_config("Pong-v5", "impala_resnet"), 1, lambda config: {})


def test_summary_takes_medians_and_their_ratios():
    result = summarize([raw_round(80, 10, 100, 300), raw_round(60, 5, 200, 50), raw_round(90, 20, 120, 400)])
    assert result["end_to_end"] == {"env_steps_per_s": 80, "env_steps_per_s_rounds": [80, 60, 90]}
    assert result["reference"]["env_steps_per_s"] == 10
    assert result["slowest_ceiling"]["name"] == "environment_and_policy"
    assert result["slowest_ceiling"]["env_steps_per_s"] == 120
    assert result["ceilings"]["updates"]["env_steps_per_s"] == 300
    assert result["ratios"] == {
        "end_to_end_over_slowest_ceiling": pytest.approx(80 / 120),
        "end_to_end_over_reference": pytest.approx(8),
    }


def test_slow_learner_is_the_ceiling():
    assert summarize([raw_round(1, 1, 100, 99)])["slowest_ceiling"]["name"] == "updates"


def test_parts_of_a_ceiling_are_no_ceiling():
    entry = raw_round(1, 1, 100, 200)
    entry["ceilings"]["policy"] = {"env_steps_per_s": 5}
    assert summarize([entry])["slowest_ceiling"]["name"] == "environment_and_policy"


def test_an_engine_without_a_figure_is_left_out():
    assert "environment_engine" not in summarize([raw_round(1, 1, 1, 1)])["ceilings"]


@pytest.fixture
def measured(monkeypatch):
    """Stand-ins for the measurements; the list of what was called, in order."""
    called = []

    def call(function, arguments, *, one_core):
        called.append((function, arguments, one_core))
        return {"env_steps_per_s": 10.0 if arguments["num_threads"] == 1 else 8.0}

    def measure_ceilings(config, seconds):
        called.append(("ceilings", seconds))
        return {name: {"env_steps_per_s": 50.0} for name in MEASUREMENTS}

    monkeypatch.setattr(loop, "call", call)
    monkeypatch.setattr(loop, "measure_ceilings", measure_ceilings)
    return called


def test_rounds_interleave(measured):
    def end_to_end(config):
        measured.append(("end_to_end", config))
        return {"env_steps_per_s": 40.0}

    result = bench_loop(run_config(), 2, end_to_end, ceiling_s=0.5)
    reference = "hpcrl.bench.reference:run_reference"
    assert [entry[0] for entry in measured] == 2 * [reference, reference, "ceilings", "end_to_end"]
    assert [entry[1]["seed"] for entry in measured if len(entry) == 3] == [7, 7, 8, 8]
    assert measured[2] == ("ceilings", 0.5)
    assert measured[3] == ("end_to_end", run_config())
    assert json.loads(json.dumps(result)) == result
    parts = {"end_to_end", "reference", "slowest_ceiling", "ceilings", "ratios", "rounds", "machine"}
    assert set(result) >= parts
    assert len(result["rounds"]) == 2


def test_reference_is_the_faster_of_default_and_one_thread_never_pinned(measured):
    result = bench_loop(run_config(), 1, lambda config: {"env_steps_per_s": 40.0})
    assert [entry[1]["num_threads"] for entry in measured if len(entry) == 3] == [None, 1]
    assert [entry[2] for entry in measured if len(entry) == 3] == [False, False]
    assert result["ratios"]["end_to_end_over_reference"] == 4.0


@pytest.mark.parametrize(
    ("config", "env_steps", "want"),
    [
        (run_config("Pong-v5", "nature_cnn"), None, ("Pong-v5", 3072, "nature_cnn")),
        (run_config(), None, ("CartPole-v1", 20_480, "mlp")),
        (run_config(), 99, ("CartPole-v1", 99, "mlp")),
    ],
)
def test_reference_has_the_network_of_the_run(measured, config, env_steps, want):
    bench_loop(config, 1, lambda config: {"env_steps_per_s": 1.0}, reference_env_steps=env_steps)
    arguments = measured[0][1]
    assert (arguments["env_id"], arguments["env_steps"], arguments["network"]) == want


def test_what_cannot_be_compared_is_refused_before_anything_runs(measured):
    with pytest.raises(ConfigError, match="rounds=0"):
        bench_loop(run_config(), 0, lambda config: {})
    with pytest.raises(ConfigError, match=r"env\.id='counting' is not one of EnvPool's"):
        bench_loop(run_config("counting"), 1, lambda config: {})
    assert measured == []


def test_render_shows_every_figure_and_marks_the_slowest(measured):
    result = bench_loop(run_config(), 1, lambda config: {"env_steps_per_s": 12345.0})
    text = io.StringIO()
    Console(file=text, width=120).print(render(result))
    assert "12,345" in text.getvalue()
    assert "1234.50 x" in text.getvalue()
    for name in MEASUREMENTS:
        assert name in text.getvalue()
    assert text.getvalue().count("(slowest ceiling)") == 1
