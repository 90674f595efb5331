import json

import pytest

from hpcrl.__main__ import main
from hpcrl.bench import equal
from hpcrl.bench.equal import bench_equal, reference_work, render
from hpcrl.bench.reference import Work
from hpcrl.config import (
    ConfigError,
    EnvConfig,
    ImpactConfig,
    ImpalaConfig,
    ModelConfig,
    PPOConfig,
    RunConfig,
)
from tests.system.support import TOP


def config(env=None, model=None, algorithm=None):
    return RunConfig(
        name="x",
        seed=7,
        env=env or EnvConfig(id="CartPole-v1", engine="envpool", num_envs=4),
        model=model or ModelConfig(shared_torso=False, hidden_sizes=(32,)),
        algorithm=algorithm or PPOConfig(unroll_length=16, epochs=2, num_minibatches=8),
    )


@pytest.fixture
def referenced(monkeypatch):
    """Stands in for the reference; what it was given."""
    given = []

    def reference(arguments):
        given.append(arguments)
        return {"env_steps_per_s": 10.0 * len(given)}

    monkeypatch.setattr(equal, "faster_reference", reference)
    return given


def test_all_do_the_same_work_in_turn(referenced):
    runs = []

    def measure(run):
        runs.append(run)
        return {"env_steps_per_s": 60.0 if run.scheme == "pipeline" else 40.0}

    result = bench_equal(config(), 5, 3, measure)
    assert [run.scheme for run in runs] == 3 * ["synchronous", "pipeline"]
    assert {run.budget.env_steps for run in runs} == {5 * 4 * 16}
    assert {run.algorithm for run in runs} == {config().algorithm}
    assert [one["seed"] for one in referenced] == [7, 8, 9]
    work = {"num_envs": 4, "unroll_length": 16, "epochs": 2, "num_minibatches": 8, "hidden_sizes": [32]}
    for one in referenced:
        assert (one["env_id"], one["env_steps"], one["network"], one["work"]) == (
            "CartPole-v1",
            320,
            "mlp",
            work,
        )
    assert Work(**work).epochs == 2
    ratios = {row["way"]: row["over_reference"] for row in result["rows"]}
    # the reference's median is 20
    assert ratios == {"reference": 1.0, "one process, float32": 2.0, "pipeline, float32": 3.0}
    assert json.loads(json.dumps(result)) == result
    assert render(result).row_count == 3


def test_images_are_measured_in_both_precisions(referenced):
    runs = []

    def measure(run):
        runs.append((run.scheme, run.model.precision, run.model.channels_last))
        return {"env_steps_per_s": 1.0}

    images = ModelConfig(torso="nature_cnn", hidden_sizes=(512,), activation="relu", precision="bfloat16")
    pong = EnvConfig(id="Pong-v5", engine="envpool", num_envs=4)
    result = bench_equal(config(env=pong, model=images), 2, 1, measure)
    assert runs == [
        (scheme, *kept)
        for scheme in ("synchronous", "pipeline")
        for kept in (("float32", False), ("bfloat16", True))
    ]
    assert len(result["rows"]) == 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"algorithm": ImpalaConfig()}, "algorithm.name=impala: the reference is PPO"),
        ({"env": EnvConfig(id="CartPole-v1")}, "env.engine=gymnasium: the reference steps EnvPool's"),
        ({"model": ModelConfig()}, "model.shared_torso=True: the reference has False"),
        ({"model": ModelConfig(shared_torso=False, activation="relu")}, "model.activation=relu"),
        ({"model": ModelConfig(torso="nature_cnn", hidden_sizes=(512,))}, "model.activation=tanh"),
        (
            {"model": ModelConfig(shared_torso=False, recurrent="gru"), "algorithm": PPOConfig()},
            "model.recurrent=gru",
        ),
        ({"algorithm": ImpactConfig(unroll_length=16)}, "algorithm.batch_uses=2"),
        ({"algorithm": PPOConfig(unroll_length=16, num_minibatches=7)}, "does not divide the 64 env_steps"),
    ],
)
def test_what_the_reference_cannot_do_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        reference_work(config(**wrong))


def test_nothing_to_measure_is_refused(referenced):
    for updates, rounds in ((1, 1), (2, 0)):
        with pytest.raises(ConfigError, match="at least 1 round and 2 updates"):
            bench_equal(config(), updates, rounds, lambda run: {})
    assert not referenced


@pytest.mark.parametrize(
    ("what", "function"), [("loop", "bench_loop"), ("equal", "bench_equal"), ("scale", "bench_scale")]
)
def test_command_line(what, function, monkeypatch, capsys):
    module = f"hpcrl.bench.{what}"
    given = []

    def bench(run, *rest):
        given.append((run, *rest))
        return {"measured": what}

    monkeypatch.setattr(f"{module}.{function}", bench)
    monkeypatch.setattr(f"{module}.render", lambda result: "a table")
    recipe = f"{TOP}/jobs/cartpole.py:ppo"
    with pytest.raises(SystemExit) as ended:
        main(["bench", what, recipe, "--rounds", "4", "--json", "--set", "seed=5"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == {"measured": what}
    assert given[0][0].seed == 5 and 4 in given[0]
