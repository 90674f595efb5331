import time

import pytest
from rich.console import Console

from hpcrl.bench import watched
from hpcrl.bench.watched import bench_watched, render
from hpcrl.config import ConfigError, RunConfig

CONFIG = RunConfig.parse({"name": "toy", "env": {"id": "x"}, "algorithm": {"name": "ppo"}})


def test_rounds_alternate_and_medians_of_the_ratios_count(tmp_path, monkeypatch):
    monkeypatch.setattr(watched, "_LONGEST_LIFE_S", 0.05)
    monkeypatch.setattr(watched, "_SHORTEST_LIFE_S", 0.01)
    runs = []
    speeds = {"alone": iter([100.0, 100.0, 200.0]), "watched": iter([99.0, 50.0, 196.0])}

    def measure(config, beside=None):
        name = "alone" if beside is None else "watched"
        runs.append(name)
        if beside is not None:
            with beside(tmp_path / "run"):
                time.sleep(0.2)
        return {"env_steps_per_s": next(speeds[name]), "cpu_s": 4.0 if beside is None else 4.1}

    result = bench_watched(CONFIG, 3, 0.05, measure)
    assert runs == ["alone", "watched", "watched", "alone", "alone", "watched"]
    assert result["speed_ratio"] == pytest.approx(0.98) and result["cpu_ratio"] == pytest.approx(1.025)
    assert all(one["killed_readers"] >= 1 for one in result["rounds"])
    console = Console(width=150)
    with console.capture() as shown:
        console.print(render(result))
    assert "watched, it has 0.980 x the env_steps/s and 1.025 x the CPU time" in " ".join(shown.get().split())


def test_readers_are_those_of_watch_and_are_killed(tmp_path, monkeypatch):
    started = []
    real = watched.subprocess.Popen

    def start(command, **how):
        process = real(command, **how)
        started.append((command, process))
        return process

    monkeypatch.setattr(watched.subprocess, "Popen", start)
    monkeypatch.setattr(watched, "_LONGEST_LIFE_S", 0.05)
    monkeypatch.setattr(watched, "_SHORTEST_LIFE_S", 0.01)
    killed = []
    with watched.readers(tmp_path / "run", every_s=0.05, seed=1, killed=killed):
        while len(started) < 2:
            time.sleep(0.01)
    assert killed == [-9] * len(started)
    for command, process in started:
        assert command[-5:] == ["hpcrl", "watch", str(tmp_path / "run"), "--every", "0.05"]
        assert process.returncode == -9


@pytest.mark.parametrize(("rounds", "every_s"), [(0, 1.0), (1, 0.0)])
def test_what_measures_nothing_is_refused(rounds, every_s):
    with pytest.raises(ConfigError, match="must be at least 1"):
        bench_watched(CONFIG, rounds, every_s, lambda config: {})
