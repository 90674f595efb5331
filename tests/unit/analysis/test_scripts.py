"""Every script as an analyst runs it: no MPI, no torch, one run directory, and what is wrong said in one line."""

import pandas as pd
import pytest

from tests.unit.analysis.support import ANALYSIS, make_run, run_scripts

SCRIPTS = ("aggregates", "compare", "cost", "curves", "lag", "throughput", "time_shares", "report")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two settings with two seeds each, a run that was killed before its first update, one of another environment."""
    folder = tmp_path_factory.mktemp("analysis")
    for seed in range(2):
        make_run(folder / "runs", seed=seed, returns=[seed] * 20, evaluation=(1.0, seed))
        make_run(folder / "runs", seed=seed, algorithm="a2c", returns=[9 + seed] * 20, evaluation=(8.0, 9.0))
    make_run(folder / "other", env="Acrobot-v1")
    empty = make_run(folder / "empty", status=None)
    (empty / "attempts/001.h5").unlink()
    return folder


def test_every_script_is_named_here():
    mains = {path.stem for path in ANALYSIS.glob("*.py") if "def main(" in path.read_text()}
    assert mains == {*SCRIPTS, "lag_study"}


def test_every_script_runs_where_neither_mpi_nor_torch_can_be_imported(folder):
    drawn = [name for name in SCRIPTS if name != "report"]
    commands = [
        (f"{name}.py", folder / "runs", "--out", folder / f"{name}.svg", "--csv", folder / f"{name}.csv")
        for name in drawn
    ]
    commands += [
        (
            "curves.py",
            folder / "runs",
            "--seeds",
            "--out",
            folder / "seeds.png",
            "--csv",
            folder / "seeds.csv",
        )
    ]
    commands += [("report.py", folder / "other", "--out", folder / "report.html")]
    code, output, errors = run_scripts(*commands)
    assert code == 0, errors
    assert [line for line in output.splitlines() if line.startswith("exit")] == ["exit 0"] * len(commands)
    for name in [*drawn, "seeds"]:
        assert len(pd.read_csv(folder / f"{name}.csv"))
        picture = folder / ("seeds.png" if name == "seeds" else f"{name}.svg")
        assert picture.stat().st_size > 5000
    assert (
        f"wrote {folder / 'report.html'}" in output
        and "<h1>toy-0-001</h1>" in (folder / "report.html").read_text()
    )
    assert "So few seeds cannot show a difference" in output
    assert all("as few as 2 seeds" in line for line in errors.splitlines()), errors


def test_help_teaches(folder):
    code, output, _ = run_scripts(*((f"{name}.py", "--help") for name in SCRIPTS))
    assert code == 0
    for name, text in zip(SCRIPTS, output.split("exit 0\n"), strict=False):
        assert text.startswith(f"usage: {name}.py")
        assert f"python analysis/{name}.py runs" in text and "neither MPI nor torch" in " ".join(text.split())
        assert name == "report" or "The CSV has one row per" in text


WRONG = [
    (("aggregates.py", "EMPTY", "--out", "x.png"), "no run has a score to compare; left out, 1 of 1 runs"),
    (("aggregates.py", "RUNS", "OTHER"), "these runs are of 2 environments (Acrobot-v1, CartPole-v1)"),
    (("aggregates.py", "RUNS", "--resamples", "3"), "--resamples 3 must be at least 100"),
    (("compare.py", "OTHER"), "all runs that count are of one setting (toy); a comparison needs two"),
    (("compare.py", "RUNS", "--baseline", "sac"), "--baseline 'sac' is none of the settings"),
    (
        ("compare.py", "RUNS", "--by", "algorithm.nam"),
        "no run has a setting 'algorithm.nam'; near: algorithm.name",
    ),
    (("curves.py", "OTHER", "--seeds", "--out", "x.png"), "a band over seeds needs two runs or more"),
    (("cost.py", "EMPTY"), "nothing has been recorded yet in toy-0-001"),
    (("lag.py", "EMPTY"), "no update has been logged yet"),
    (("throughput.py", "EMPTY"), "no run has logged two updates in one attempt yet"),
    (("time_shares.py", "EMPTY"), "no times have been recorded"),
    (("time_shares.py", "EMPTY", "--traffic"), "nothing traveled between ranks"),
    (("time_shares.py", "RUNS/none"), "does not exist; expected a run directory"),
    (("lag.py", "RUNS", "--out", "x.gif"), "--out x.gif: a picture's name ends in .png, .svg, .pdf"),
    (("report.py", "RUNS/none"), "does not exist; expected a run directory"),
    (("report.py", "RUNS", "--out", "x.png"), "--out x.png: the page's name ends in .html"),
    (("cost.py", "RUNS", "--csv", "no/such/folder/x.csv"), "no/such/folder"),
]


def test_wrong_use_ends_with_exit_code_2_and_one_line(folder, monkeypatch):
    monkeypatch.chdir(folder)
    places = {"RUNS": "runs", "OTHER": "other", "EMPTY": "empty"}

    def at(argument):
        head, slash, rest = argument.partition("/")
        return str(folder / places[head]) + slash + rest if head in places else argument

    commands = [(name, *map(at, arguments)) for (name, *arguments), _ in WRONG]
    _, output, errors = run_scripts(*commands)
    assert [line for line in output.splitlines() if line.startswith("exit")] == ["exit 2"] * len(WRONG)
    lines = errors.splitlines()
    assert len(lines) == len(WRONG), errors
    for ((name, *_), message), line in zip(WRONG, lines, strict=True):
        assert line.startswith(f"{name.removesuffix('.py')}: ") and message in line
