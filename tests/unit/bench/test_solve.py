import io
import json

import pytest
from rich.console import Console

from hpcrl.__main__ import main
from hpcrl.bench import solve
from hpcrl.bench.solve import Checks, bench_solve, recipe_solves, reference_solves, render, summarize
from hpcrl.config import ConfigError, RunConfig
from tests.system.support import TOP


def config(**sections):
    values = {
        "name": "x",
        "scheme": "synchronous",
        "env": {"id": "CartPole-v1", "engine": "envpool", "num_envs": 4},
        "algorithm": {"name": "ppo", "unroll_length": 32},
        "budget": {"env_steps": 1000},
        "evaluation": {"episodes": 4},
    }
    return RunConfig.parse(values | sections)


def row(who, seconds, solved=True):
    times = {"env_steps": 100 * seconds, "seconds": seconds, "seconds_with_start": seconds + 1}
    return {"who": who, "seed": 0, "solved": solved, "score": 1.0, **times}


def test_ratios_are_those_of_the_medians():
    rows = [row("hpcrl", seconds) for seconds in (1, 2, 9)] + [
        row("reference", seconds) for seconds in (8, 5, 90)
    ]
    result = summarize(rows)
    assert result["medians"]["hpcrl"] == {"env_steps": 200, "seconds": 2, "seconds_with_start": 3}
    assert result["ratios"] == {"env_steps": 4, "seconds": 4, "seconds_with_start": 3}


def test_no_ratio_where_one_was_not_solved():
    result = summarize([row("hpcrl", 1), row("reference", 9, solved=False)])
    assert result["ratios"] is None
    out = io.StringIO()
    Console(file=out, width=100).print(render({**result, "recipe": "x", "target": 475.0}))
    assert "not solved" in out.getvalue()
    assert "9.00" in out.getvalue()


def test_each_seed_is_solved_by_both(monkeypatch):
    asked = []

    def call(function, arguments, *, one_core):
        asked.append((function.partition(":")[2], arguments["config"]["seed"], arguments["config"]["budget"]))
        assert one_core
        return {key: value for key, value in row("", 1).items() if key not in ("who", "seed")}

    monkeypatch.setattr(solve, "call", call)
    bench_solve(config(seed=3), 475, 2, every=500, reference_env_steps=77)
    own, other = {"env_steps": 1000}, {"env_steps": 77}
    assert asked == [
        ("recipe_solves", 3, own),
        ("reference_solves", 3, other),
        ("recipe_solves", 4, own),
        ("reference_solves", 4, other),
    ]


@pytest.mark.parametrize(
    ("sections", "rounds", "names"),
    [
        ({"scheme": "pipeline", "algorithm": {"name": "impala"}}, 1, "scheme"),
        ({"ranks": {"workers": 2}}, 1, "workers"),
        ({"env": {"id": "chain", "engine": "toy"}}, 1, "EnvPool"),
        ({"lag": {"injection": 1, "max_lag": 1}}, 1, "use lag.injection=0"),
        (
            {"algorithm": {"name": "impact", "buffer_batches": 2}, "lag": {"max_lag": 2}},
            1,
            "buffer_batches=2",
        ),
        ({}, 0, "rounds"),
    ],
)
def test_what_cannot_be_compared_is_refused(sections, rounds, names):
    with pytest.raises(ConfigError, match=names):
        bench_solve(config(**sections), 475, rounds, every=500, reference_env_steps=77)


@pytest.mark.parametrize("solves", [recipe_solves, reference_solves])
def test_it_ends_at_the_first_check_that_reaches_the_score(solves):
    result = solves(config(budget={"env_steps": 3000}).to_dict(), 1.0, 300, 0.0)
    assert result["solved"]
    assert 300 <= result["env_steps"] <= 1100


@pytest.mark.parametrize("solves", [recipe_solves, reference_solves])
def test_it_ends_with_its_budget(solves):
    result = solves(config(budget={"env_steps": 2048}).to_dict(), 501.0, 10**9, 0.0)
    assert not result["solved"]
    assert 2048 <= result["env_steps"] < 2048 + 128


def test_a_check_costs_no_time(monkeypatch):
    now = 100.0
    monkeypatch.setattr(solve, "perf_counter", lambda: now)

    def act(obs, begins):
        nonlocal now
        now += 50.0
        return obs[:, 0].astype(int)

    checks = Checks(config(), 1e9, 10, launched=90.0)
    checks.begin()
    now += 3.0
    assert not checks.solved(9, act, last=False)
    assert checks.result == {}
    assert not checks.solved(10, act, last=False)
    now += 2.0
    assert not checks.solved(11, act, last=True)
    assert checks.result["seconds"] == pytest.approx(5.0)
    assert checks.result["seconds_with_start"] == pytest.approx(15.0)


def test_the_command_line_says_what_counts_as_solved(monkeypatch, capsys):
    given = {}

    def bench(run, score, rounds, **options):
        given.update(seed=run.seed, score=score, rounds=rounds, **options)
        return {"measured": "solve"}

    monkeypatch.setattr(solve, "bench_solve", bench)
    monkeypatch.setattr(solve, "render", lambda result: "a table")
    recipe = f"{TOP}/jobs/cartpole.py:ppo"
    with pytest.raises(SystemExit) as ended:
        main(["bench", "solve", recipe, "--score", "475", "--json", "--set", "seed=5"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == {"measured": "solve"}
    assert given == {"seed": 5, "score": 475.0, "rounds": 3, "every": 5000, "reference_env_steps": 500_000}
