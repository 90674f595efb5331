import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from curves import MAX_POINTS
from curves import curves as draw_curves
from evaluation_curves import evaluation_curves
from load import load_run

from hpcrl.config import ConfigError, RunConfig
from hpcrl.storage import TABLES, RunDirectory, RunLog
from tests.unit.analysis.support import ANALYSIS, POISON


def make_run(
    folder, *, returns=(), attempts=1, evaluation=(), status=("finished", 0), seed=0, gamma=0.99, name="toy"
):
    config = RunConfig.parse(
        {
            "name": name,
            "seed": seed,
            "env": {"id": "CartPole-v1"},
            "algorithm": {"name": "ppo", "gamma": gamma},
            "storage": {"runs_dir": str(folder)},
        }
    )
    count = len(returns)
    with RunDirectory.create(config) as run:
        for attempt in range(1, attempts + 1):
            path = run.path / f"attempts/{attempt:03d}.h5"
            with RunLog(path, config_json="{}", provenance={}, attempt=attempt) as log:
                step = 10 * np.arange(1, count + 1) + 10 * count * (attempt - 1)
                time_s = np.arange(1, count + 1) * 0.5
                log.append(
                    "episodes",
                    TABLES["episodes"].rows(
                        count, env_steps=step, time_s=time_s, episode_return=returns, truncated=False
                    ),
                )
                log.append("events", TABLES["events"].row(kind="started", time_s=0.0, text="größe"))
                if evaluation:
                    log.append(
                        "evaluation",
                        TABLES["evaluation"].rows(
                            len(evaluation), update=1, episode_return=evaluation, cut=False
                        ),
                    )
        if status:
            run.write_status(status[0], exit_code=status[1], env_steps=10 * count * attempts)
    return run.path


def run_script(*arguments):
    command = [sys.executable, "-c", POISON, str(ANALYSIS / "curves.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_tables_become_frames_with_text_and_joined_time(tmp_path):
    run = make_run(tmp_path, returns=[1.0, 2.0, 3.0], attempts=2)
    tables = load_run(run)
    assert tables.keys() == TABLES.keys()
    assert tables["events"]["text"].tolist() == ["größe", "größe"]
    episodes = tables["episodes"]
    assert episodes["attempt"].tolist() == [1, 1, 1, 2, 2, 2]
    assert episodes["time_s"].tolist() == [0.5, 1.0, 1.5] * 2
    assert episodes["wall_s"].tolist() == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    alone = load_run(run / "attempts/002.h5")["episodes"]
    assert alone["attempt"].tolist() == [2, 2, 2] and alone["wall_s"].tolist() == [0.5, 1.0, 1.5]
    assert "wall_s" not in tables["lag"] and len(tables["lag"]) == 0


def test_the_frame_holds_every_episode_and_its_rolling_statistics(tmp_path):
    returns = np.random.default_rng(0).normal(size=40)
    frame, figure = draw_curves([make_run(tmp_path, returns=returns)], window=5)
    assert frame["episode_return"].tolist() == returns.tolist()
    assert frame["env_steps"].tolist() == list(range(10, 410, 10))
    for index in (0, 3, 4, 20, 39):
        part = returns[max(0, index - 4) : index + 1]
        assert frame["return_mean"][index] == pytest.approx(part.mean())
        assert frame["return_p10"][index] == pytest.approx(np.quantile(part, 0.1))
        assert frame["return_p90"][index] == pytest.approx(np.quantile(part, 0.9))
    drawn = [axis.lines[0].get_xydata() for axis in figure.axes]
    assert drawn[0][:, 0].tolist() == frame["env_steps"].tolist()
    assert drawn[1][:, 0].tolist() == frame["wall_s"].tolist()
    assert drawn[0][:, 1].tolist() == frame["return_mean"].tolist()


def test_the_window_is_at_most_a_fifth_of_the_run(tmp_path):
    frame, _ = draw_curves([make_run(tmp_path, returns=np.arange(10.0))], window=100)
    assert frame["return_mean"].tolist() == [0.0, *(np.arange(9) + 0.5)]


def test_long_runs_are_thinned_but_keep_their_ends(tmp_path):
    frame, figure = draw_curves([make_run(tmp_path, returns=np.arange(5000.0))])
    points = figure.axes[0].lines[0].get_xydata()
    assert len(points) <= MAX_POINTS and len(frame) == 5000
    assert points[0, 0] == 10 and points[-1].tolist() == [50000, frame["return_mean"].iloc[-1]]


def test_runs_are_told_apart_and_name_their_state_and_evaluation(tmp_path):
    done = make_run(tmp_path, returns=[1.0, 2.0], evaluation=[3.0, 5.0])
    killed = make_run(tmp_path, returns=[1.0], status=None, seed=1)
    frame, figure = draw_curves([done, killed])
    assert frame["run"].tolist() == ["toy-0-001", "toy-0-001", "toy-1-001"]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["toy-0-001: evaluation 4.0 ± 1.0", "toy-1-001 (killed)"]
    marks = [container.lines[0].get_xydata().tolist() for container in figure.axes[0].containers]
    assert marks == [[[20.0, 4.0]]]


def test_runs_of_one_name_in_two_places_are_told_apart(tmp_path):
    runs = [make_run(tmp_path / place, returns=[1.0]) for place in ("a", "b")]
    assert draw_curves(runs)[0]["run"].tolist() == [str(run) for run in runs]


def test_runs_of_a_sweep_have_columns_and_colors_by_setting(tmp_path):
    """Given as the folder they are in. Seeds of one setting look alike; seeds alone do not."""
    for gamma, seed in ((0.9, 0), (0.9, 1), (0.99, 0), (0.99, 1)):
        name = f"toy-some_setting-{gamma}-another_setting-some_value-a_third-0"
        make_run(tmp_path / "runs", returns=[1.0], gamma=gamma, seed=seed, name=name)
    frame, figure = draw_curves([tmp_path / "runs"])
    assert frame.columns[:4].tolist() == ["run", "name", "seed", "algorithm.gamma"]
    rows = sorted(frame[["algorithm.gamma", "seed"]].itertuples(index=False, name=None))
    assert rows == [(0.9, 0), (0.9, 1), (0.99, 0), (0.99, 1)]
    colors = {}
    for line, gamma in zip(figure.axes[0].lines, frame["algorithm.gamma"], strict=True):
        colors.setdefault(gamma, set()).add(line.get_color())
    assert [len(of_one) for of_one in colors.values()] == [1, 1] and colors[0.9] != colors[0.99]
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= figure.bbox.width  # long names too
    only_seeds = [make_run(tmp_path / "seeds", returns=[1.0], seed=seed) for seed in (0, 1)]
    frame, figure = draw_curves(only_seeds)
    assert frame.columns[:3].tolist() == ["run", "seed", "attempt"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 2


def test_the_script_draws_and_tabulates_without_mpi_and_torch(tmp_path):
    run = make_run(tmp_path, returns=[1.0, 2.0, 3.0], evaluation=[3.0])
    png, csv = tmp_path / "c.png", tmp_path / "c.csv"
    done = run_script(run, run, "--out", png, "--csv", csv)
    assert done.returncode == 0, done.stderr
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert len(pd.read_csv(csv)) == 6
    assert done.stdout.splitlines() == [f"wrote {png}", f"wrote {csv}"]


def test_evaluations_are_drawn_one_after_the_other(tmp_path):
    run = make_run(tmp_path, returns=[1.0])
    rows = [
        TABLES["evaluation"].rows(
            4,
            update=update,
            env_steps=100 * update,
            parameter_version=update,
            episode_return=returns,
            cut=cut,
        )
        for update, returns, cut in ((3, [0.0, 1.0, 2.0, 3.0], False), (6, [4.0, 4.0, 4.0, 8.0], True))
    ]
    with RunLog(run / "attempts/002.h5", config_json="{}", provenance={}, attempt=2) as log:
        log.append("evaluation", rows[0])
        log.append("evaluation", rows[1])
    frame, figure = evaluation_curves([run])
    assert frame["update"].tolist() == frame["parameter_version"].tolist() == [3, 6]
    assert frame["return_mean"].tolist() == [1.5, 5.0] and frame["cut"].tolist() == [0, 4]
    assert frame["return_std"].tolist() == pytest.approx([np.std([0, 1, 2, 3]), np.std([4, 4, 4, 8])])
    assert frame["return_p90"].tolist() == pytest.approx([2.7, 6.8])
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[300.0, 1.5], [600.0, 5.0]]
    with pytest.raises(ConfigError, match=r"evaluation\.every_env_steps"):
        evaluation_curves([make_run(tmp_path, returns=[1.0], seed=1)])


def test_the_poison_works():
    done = subprocess.run(
        [sys.executable, "-c", POISON, str(ANALYSIS / "load.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr  # imports neither
    probe = Path(__file__).parents[3] / "hpcrl/algorithms/base.py"
    done = subprocess.run(
        [sys.executable, "-c", POISON, str(probe)], capture_output=True, text=True, check=False
    )
    assert "torch is not installed here" in done.stderr


def test_help_teaches():
    done = run_script("--help")
    assert done.returncode == 0
    for part in (
        "python analysis/curves.py runs/",
        "--out FILE",
        "--csv FILE",
        "--window N",
        "env_steps",
        "raw",
    ):
        assert part in done.stdout


def test_no_episodes_are_said_and_drawn(tmp_path):
    run = make_run(tmp_path, returns=[], status=None)
    done = run_script(run, "--out", tmp_path / "c.png", "--csv", tmp_path / "c.csv")
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "curves: no training episode has ended in these runs yet"
    assert (tmp_path / "c.png").exists()
    assert (tmp_path / "c.csv").read_text().startswith("run,attempt,env_steps,wall_s,episode_return")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN"], "nothing to write; give --out FILE.png"),
        (["RUN", "--out", "x.png", "--window", "0"], "--window 0 must be at least 1 episode"),
        (["RUN/none", "--out", "x.png"], "does not exist; expected a run directory"),
        (["RUN", "--out", "x.xyz"], "xyz"),
        (["RUN", "--csv", "no/such/folder/x.csv"], "no/such/folder"),
    ],
)
def test_wrong_use_ends_with_exit_code_2_and_one_line(tmp_path, monkeypatch, arguments, message):
    run = make_run(tmp_path, returns=[1.0])
    monkeypatch.chdir(tmp_path)
    done = run_script(*(str(argument).replace("RUN", str(run)) for argument in arguments))
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.startswith("curves: ")
    assert len(done.stderr.splitlines()) == 1
