"""One score per run, whose setting it belongs to, and what may be concluded."""

import numpy as np
import pandas as pd
import pytest
from aggregates import aggregates, normalize
from compare import compare
from scores import by_setting, left_out, notes, returns_at, run_scores
from sweeps import setting_labels

from hpcrl.config import ConfigError
from tests.unit.analysis.support import make_run


def table(scores, *, seeds_from=0):
    """A table of scores by (setting, env); as `run_scores` gives it."""
    rows = [
        {"setting": setting, "env": env, "seed": seeds_from + seed, "score": float(score)}
        for (setting, env), values in scores.items()
        for seed, score in enumerate(values)
    ]
    frame = pd.DataFrame(rows)
    names = {"run": [f"r{place}" for place in frame.index], "source": "evaluation", "counts": True}
    return frame.assign(**names, why_not="", env_steps=1000)


def test_settings_are_named_by_as_little_as_tells_them_apart(tmp_path):
    runs = [
        make_run(tmp_path, seed=seed, env=env, algorithm=name, settings={"lag": {"max_lag": lag}})
        for seed, env, name, lag in (
            (0, "CartPole-v1", "ppo", 1),
            (1, "CartPole-v1", "ppo", 1),
            (2, "CartPole-v1", "ppo", 4),
            (0, "Acrobot-v1", "impala", 1),
            (1, "Acrobot-v1", "ppo", 1),
        )
    ]
    assert setting_labels(runs) == [
        "ppo, max_lag=1",
        "ppo, max_lag=1",
        "ppo, max_lag=4",
        "impala, max_lag=1",
        "ppo, max_lag=1",
    ]
    assert setting_labels(runs[:2]) == ["toy", "toy"]
    assert setting_labels(runs, ["lag.max_lag"]) == [
        "max_lag=1",
        "max_lag=1",
        "max_lag=4",
        "max_lag=1",
        "max_lag=1",
    ]
    assert setting_labels(runs[:3], ignore=("lag.",)) == ["toy"] * 3
    wider = make_run(tmp_path, settings={"env": {"id": "CartPole-v1", "num_envs": 64}})
    assert (
        setting_labels([runs[0], wider], ["env.num_envs"])[1]
        == "num_envs=64"
        == setting_labels([runs[0], wider])[1]
    )
    with pytest.raises(ConfigError, match=r"no run has a setting 'lag.max_lg'; near: lag.max_lag"):
        setting_labels(runs, ["lag.max_lg"])


def test_a_run_is_worth_its_last_evaluation_or_its_last_episodes_never_both(tmp_path):
    both = make_run(tmp_path, seed=0, returns=np.arange(200.0), evaluation=(7.0, 9.0), attempts=2)
    frame = run_scores([both])
    assert frame["score"].tolist() == [8.0] and frame["source"].tolist() == ["evaluation"]
    assert frame["episodes"].tolist() == [2] and frame["env_steps"].tolist() == [2000]
    trained = make_run(tmp_path, seed=1, returns=np.arange(200.0))
    frame = run_scores([both, trained])
    assert frame["source"].tolist() == ["training"] * 2
    assert frame["score"].tolist() == [np.mean(np.arange(100, 200))] * 2
    frame = run_scores([both, trained], source="evaluation")
    assert frame["counts"].tolist() == [True, False]
    assert left_out(frame) == "left out, 1 of 2 runs: toy-1-001: it has no evaluation"


def test_a_score_can_be_taken_at_an_earlier_time(tmp_path):
    run = make_run(tmp_path, returns=np.arange(10.0))
    assert run_scores([run], at=500)["score"].tolist() == [2.0]  # of the returns 0 to 4
    frame = run_scores([run], at=5000)
    assert not frame["counts"].any() and "it has 1,000 env_steps, not 5,000" in left_out(frame)


@pytest.mark.parametrize(
    ("status", "counts"), [(("finished", 0), True), (("failed", 4), True), (("stopped", 75), False)]
)
def test_only_runs_that_came_to_their_end_count(tmp_path, status, counts):
    run = make_run(tmp_path, status=status)
    assert run_scores([run])["counts"].tolist() == [counts]
    assert run_scores([run], unfinished=True)["counts"].tolist() == [True]


def test_a_killed_run_does_not_count(tmp_path):
    frame = run_scores([make_run(tmp_path, status=None)])
    assert left_out(frame).endswith("toy-0-001: killed, not finished (count it by --unfinished)")


def test_returns_are_those_of_the_last_episodes_before_each_place():
    episodes = pd.DataFrame({"env_steps": [10, 30, 20], "episode_return": [1.0, 3.0, 5.0]})
    found = returns_at(episodes, np.array([5.0, 10.0, 25.0, 99.0]), window=2)
    assert np.isnan(found[0]) and found[1:].tolist() == [1.0, 3.0, 4.0]


def test_notes_tell_of_few_seeds_unequal_env_steps_and_twins():
    frame = table({("a", "E"): [1, 2, 3]})
    frame.loc[0, "env_steps"] = 2000
    frame.loc[1, "seed"] = 0
    text = "; ".join(notes(frame))
    assert (
        "as few as 3 seeds" in text and "1,000 to 2,000 env_steps" in text and "2 runs share setting" in text
    )
    assert notes(table({("a", "E"): range(5)})) == []


def test_aggregates_are_those_of_the_settings_scores():
    frame = table({("a", "E"): [0, 1, 2, 30], ("b", "E"): [5]})
    found = aggregates(frame, resamples=200).set_index(["setting", "aggregate"])
    assert found.loc[("a", "IQM"), "value"] == 1.5 and found.loc[("a", "mean"), "value"] == 8.25
    assert found.loc[("a", "IQM"), "low"] < 1.5 < found.loc[("a", "IQM"), "high"]
    assert np.isnan(found.loc[("b", "IQM"), "low"])  # one seed has no interval
    assert found["seeds"].tolist() == [4] * 3 + [1] * 3


def test_environments_need_one_scale():
    frame = table({("a", "E"): [20, 60], ("a", "F"): [-1, 1]})
    with pytest.raises(ConfigError, match=r"2 environments \(E, F\).*--reference ENV=LOW:HIGH"):
        aggregates(frame, resamples=100)
    with pytest.raises(ConfigError, match="no --reference for F"):
        normalize(frame, ["E=20:100"])
    for wrong in ("E", "E=1", "E=1:1", "=1:2", "E=a:b"):
        with pytest.raises(ConfigError, match="write ENV=LOW:HIGH"):
            normalize(frame, [wrong])
    scaled = normalize(frame, ["E=20:100", "F=-1:1"])
    assert scaled["score"].tolist() == [0.0, 0.5, 0.0, 1.0]
    found = aggregates(scaled, normalized=True, resamples=100).set_index("aggregate")
    assert found.loc["mean", "value"] == 0.375 and found.loc["optimality gap", "value"] == 0.625
    assert found.loc["IQM", "environments"] == 2


def test_a_difference_that_is_there_is_stated():
    frame = table({("old", "E"): [1, 2, 3, 4, 5], ("new", "E"): [11, 12, 13, 14, 15]})
    row = compare(frame, resamples=500).iloc[0]
    assert row["baseline"] == "old" and row["probability"] == 1.0
    assert row["p"] == pytest.approx(2 / 252) and row["difference"] == 10.0
    assert row["verdict"] == "better" and row["statement"].endswith(
        "new is better than old at the 5 % level."
    )
    assert "5 against 5 seeds" in row["statement"] and "13 against 3" in row["statement"]
    assert compare(frame, baseline="new", resamples=500).iloc[0]["verdict"] == "worse"


def test_no_difference_and_too_few_seeds_are_told_apart():
    same = compare(table({("a", "E"): [1, 3, 5, 7], ("b", "E"): [2, 4, 6, 8]}), resamples=500).iloc[0]
    assert same["verdict"] == "no difference shown" and "no proof" in same["statement"]
    few = compare(table({("a", "E"): [1, 2, 3], ("b", "E"): [7, 8, 9]}), resamples=500).iloc[0]
    assert few["verdict"] == "too few seeds"
    assert "(smallest p possible: 0.1); 4 seeds of each could" in few["statement"]
    one = compare(table({("a", "E"): [1], ("b", "E"): [2]}), resamples=500).iloc[0]
    assert np.isnan(one["p_low"]) and "interval" not in one["statement"]


def test_several_comparisons_are_corrected():
    scores = {(name, "E"): np.arange(4) + shift for name, shift in (("a", 0), ("b", 10), ("c", 20))}
    found = compare(table(scores), resamples=500)
    assert found["p"].tolist() == pytest.approx([2 / 70] * 2)
    assert found["p_corrected"].tolist() == pytest.approx([4 / 70] * 2)
    assert found["verdict"].tolist() == ["too few seeds"] * 2 and "corrected for 2" in found["statement"][0]


def test_environments_that_both_have_are_compared():
    scores = {
        ("a", "E"): [1, 2],
        ("a", "F"): [100, 200],
        ("b", "E"): [3, 4],
        ("b", "F"): [300, 400],
        ("b", "G"): [0, 0],
    }
    row = compare(table(scores), resamples=500).iloc[0]
    assert row["environments"] == "E, F" and row["probability"] == 1.0 and np.isnan(row["iqm"])
    assert row["p"] == pytest.approx(2 / 36)
    with pytest.raises(ConfigError, match="different environments cannot be compared"):
        compare(table({("a", "E"): [1, 2], ("b", "F"): [3, 4]}))
    with pytest.raises(ConfigError, match="one setting"):
        compare(table({("a", "E"): [1, 2]}))
    with pytest.raises(ConfigError, match="none of the settings a; b"):
        compare(table({("a", "E"): [1, 2], ("b", "E"): [3, 4]}), baseline="c")


def test_scores_that_do_not_count_are_in_no_setting():
    frame = table({("a", "E"): [1, 2, 3]})
    frame.loc[1, "counts"] = False
    assert by_setting(frame)["a"]["E"].tolist() == [1.0, 3.0]
