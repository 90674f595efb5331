import json
from dataclasses import replace

import pytest

from hpcrl.__main__ import main
from hpcrl.bench.mpi import command
from hpcrl.bench.mpi.command import PARTS, Options, Wanted, bench_command, plan, prediction
from hpcrl.config import ConfigError, load_object
from hpcrl.launch.situation import Situation

ALONE, SECOND = Situation("none", 0, 1, 1), Situation("hydra", 1, 4, 4)
SPEEDS = {
    "link_bytes_per_s": 1e9,
    "link_latency_s": 1e-5,
    "memory_bytes_per_s": 1e10,
    "local_latency_s": 1e-6,
}


@pytest.fixture
def started(monkeypatch):
    """What ranks were started for; they answer at once."""
    calls = []

    def start_ranks(function, arguments, ranks):
        calls.append((function, arguments["calls"], ranks))
        return {
            "worlds": [
                {"title": name, "lines": [], "cases": {}, "ranks": ranks} for name, _ in arguments["calls"]
            ]
        }

    def join_ranks(function, arguments):
        calls.append((function, arguments["calls"], "joined"))
        return None if command.look().rank else {"worlds": [world]}

    world = {"title": "here", "lines": [], "cases": {}, "nodes": 2, "ranks_per_node": 3, "speeds": SPEEDS}
    monkeypatch.setattr(command, "start_ranks", start_ranks)
    monkeypatch.setattr(command, "join_ranks", join_ranks)
    monkeypatch.setattr(command, "look", lambda: ALONE)
    return calls


def test_every_measurement_exists():
    for parts in PARTS.values():
        for part in parts:
            assert callable(load_object(f"hpcrl.bench.mpi.{part.function}", "measurement"))


def test_each_world_is_started_once():
    found = plan("comm", Options(rounds=3))
    assert {ranks: [name for name, _ in calls] for ranks, calls in found.items()} == {
        2: ["transfer:transfers", "waiting:waiting"],
        8: ["fan_in:fan_in"],
    }
    assert found[8] == [("fan_in:fan_in", {"rounds": 3})]
    assert found[2][0][1] == {"rounds": 3, "sizes": (65536, 262144, 1048576)}


def test_sizes_and_ranks_from_the_command_line(started, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "reduce", "--sizes", "4K,1M,12", "--ranks", "2,3", "--rounds", "2", "--json"])
    assert stop.value.code == 0
    wanted = [("sums:sums", {"rounds": 2, "sizes": (4096, 1 << 20, 12)})]
    assert started == [
        ("hpcrl.bench.mpi.command:measure", wanted, 2),
        ("hpcrl.bench.mpi.command:measure", wanted, 3),
    ]
    result = json.loads(capsys.readouterr().out)
    assert [world["ranks"] for world in result["worlds"]] == [2, 3]
    assert {"what", "rounds", "worlds", "machine"} == set(result)


def test_inside_a_world_that_is_measured_and_rank_0_speaks(started, monkeypatch, capsys):
    monkeypatch.setattr(command, "look", lambda: replace(SECOND, rank=0))
    assert bench_command("comm", Options()) == 0
    assert "here" in capsys.readouterr().out
    monkeypatch.setattr(command, "look", lambda: SECOND)
    assert bench_command("comm", Options()) == 0
    assert capsys.readouterr().out == ""
    assert [(len(calls), ranks) for _, calls, ranks in started] == [(3, "joined"), (3, "joined")]


@pytest.mark.parametrize(
    ("situation", "options", "wanted", "match"),
    [
        (ALONE, Options(rounds=0), None, "rounds=0"),
        (replace(SECOND, rank=0), Options(ranks=(2,)), None, "--ranks"),
        (ALONE, Options(), Wanted(1000), "--gbit"),
        (ALONE, Options(), Wanted(0, gbit_per_s=1.0), "above 0"),
    ],
)
def test_refused_before_anything_starts(started, monkeypatch, capsys, situation, options, wanted, match):
    monkeypatch.setattr(command, "look", lambda: situation)
    assert bench_command("reduce", options, wanted) == 2
    assert match in capsys.readouterr().err
    assert started == []


def test_prediction_for_a_named_link_measures_nothing(started, capsys):
    with pytest.raises(SystemExit):
        main(
            [
                "bench",
                "reduce",
                "--parameters",
                "1000",
                "--nodes",
                "4",
                "--ranks-per-node",
                "2",
                "--gbit",
                "8",
                "--json",
            ]
        )
    result = json.loads(capsys.readouterr().out)
    assert started == []
    assert result["worlds"] == []
    assert result["prediction"]["speeds"]["link_bytes_per_s"] == 1e9
    assert {"all_gather", "two_phase"} < {form["exchange"] for form in result["prediction"]["forms"]}


def test_other_ranks_say_nothing_about_a_named_link(started, monkeypatch, capsys):
    monkeypatch.setattr(command, "look", lambda: SECOND)
    assert bench_command("reduce", Options(), Wanted(1000, gbit_per_s=1.0)) == 0
    assert capsys.readouterr().out == ""


def test_prediction_in_a_world_measures_that_size_and_takes_its_link(started, monkeypatch, capsys):
    monkeypatch.setattr(command, "look", lambda: replace(SECOND, rank=0))
    assert bench_command("reduce", Options(as_json=True), Wanted(1000, nodes=8)) == 0
    assert started[0][1] == [("sums:sums", {"rounds": 15, "sizes": (4000,)})]
    found = json.loads(capsys.readouterr().out)["prediction"]
    assert (found["nodes"], found["ranks_per_node"], found["speeds"]) == (8, 3, SPEEDS)


def test_one_node_has_no_link_to_measure():
    with pytest.raises(ConfigError, match="--gbit"):
        prediction(Wanted(10, nodes=2), [{"nodes": 1, "ranks_per_node": 4, "speeds": SPEEDS}])
