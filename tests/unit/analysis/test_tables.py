"""Lag, throughput, time shares, cost and bands over seeds, from runs whose numbers are known."""

import numpy as np
import pandas as pd
import pytest
from cost import cost
from lag import correlation, lag_by_run, lag_by_update, lag_histogram, sentences
from load import load_run
from resources import parse_cores, used
from scores import run_scores
from seed_bands import PLACES, seed_bands
from throughput import intervals, throughput
from time_shares import OTHERS, REST, by_kind, draw, time_shares, traffic

from hpcrl.config import ConfigError
from hpcrl.storage import TABLES, RunLog
from tests.unit.analysis.support import make_run


def slow_quantile(lags, env_steps, share):
    every = np.repeat(lags, env_steps)
    return np.sort(every)[int(np.ceil(share * len(every))) - 1]


def test_the_lag_of_each_update_and_its_quantiles(tmp_path):
    run = make_run(tmp_path, returns=np.arange(10.0), attempts=2)
    rng = np.random.default_rng(0)
    third = run / "attempts/003.h5"
    lags, env_steps = np.array([0, 2, 3, 7, 9]), rng.integers(1, 40, size=5)
    with RunLog(third, config_json="{}", provenance={}, attempt=3, first_update=20) as log:
        log.append("updates", TABLES["updates"].row(update=21, env_steps=2100, time_s=1.0, applied=True))
        log.append("lag", TABLES["lag"].rows(5, update=21, lag=lags[::-1], env_steps=env_steps[::-1]))
    frame = lag_by_update([run])
    assert frame["update"].tolist() == list(range(1, 22)) and set(frame["run"]) == {"toy-0-001"}
    assert frame["lag_p50"].tolist()[:20] == [0] * 20 and frame["lag_p90"].tolist()[:20] == [1] * 20
    last = frame.iloc[20]
    assert last["lag_p50"] == slow_quantile(lags, env_steps, 0.5)
    assert last["lag_p90"] == slow_quantile(lags, env_steps, 0.9)
    assert frame["wall_s"].tolist() == [*np.arange(1.0, 21.0), 21.0]
    assert frame["return_mean"].tolist()[:3] == [0.0, 0.5, 1.0]
    shares = lag_histogram([run])
    assert shares["share"].sum() == pytest.approx(1.0)
    assert shares["share"].tolist()[0] == pytest.approx((1000 + env_steps[0]) / (2000 + env_steps.sum()))


def test_lag_and_return_are_correlated_over_runs(tmp_path):
    runs = [make_run(tmp_path, seed=seed, returns=[50.0 - 10 * seed], lag=(seed, seed)) for seed in range(5)]
    table = lag_by_run(lag_by_update(runs), run_scores(runs))
    assert table["lag_mean"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    found = correlation(table)
    assert found["rank_correlation"].tolist() == pytest.approx([-1.0]) and found["runs"].tolist() == [5]
    assert found["p"][0] == pytest.approx(2 / 120, abs=0.004)
    assert sentences(found)[0].startswith(
        "On CartPole-v1, 5 runs of 1 setting: rank correlation of mean lag and score -1.00"
    )
    assert correlation(table.head(3)).empty  # too few
    assert correlation(table.assign(lag_mean=1.0)).empty


def test_rates_leave_out_starts_and_what_lies_between_attempts(tmp_path):
    run = make_run(tmp_path, attempts=2, actors=2)
    row = throughput([run]).iloc[0]
    assert (
        row["env_steps_per_s"] == 100.0 and row["train_s"] == 18.0
    )  # 9 s between the updates of each attempt
    assert row["updates_per_s"] == 1.0 and row["overall_per_s"] == 100.0
    assert row[["ranks", "actors", "learners", "nodes", "cores"]].tolist() == [4, 2, 1, 2, 8]
    parts = intervals([run])
    assert parts["env_steps_per_s"].tolist() == pytest.approx([100.0] * len(parts))
    assert parts["attempt"].tolist() == [1] * 9 + [2] * 9
    assert not ((parts["wall_s"] > 10.0) & (parts["wall_s"] < 11.0)).any()


def test_scaling_is_counted_from_the_smallest_run_of_each_setting(tmp_path):
    runs = [make_run(tmp_path, actors=actors) for actors in (2, 4)]
    runs += [make_run(tmp_path, actors=2, settings={"lag": {"max_lag": 7}})]
    found = throughput(runs, per="actors")
    assert found["speedup"].tolist() == [1.0, 1.0, 1.0] and found["efficiency"].tolist() == [1.0, 0.5, 1.0]
    assert found["setting"].nunique() == 2
    with pytest.raises(ConfigError, match="must be one of ranks, actors, nodes, cores"):
        throughput(runs, per="gpus")


def test_shares_of_a_role_add_up_and_nothing_is_counted_twice(tmp_path):
    found = time_shares([make_run(tmp_path, actors=2)]).set_index(["role", "hop"])
    assert found.groupby("role")["share"].sum().tolist() == pytest.approx([1.0, 1.0])
    assert found.loc[("learner", "algorithm.update"), "seconds"] == 3.0  # 1 of 4 s was the reducer's
    assert found.loc[("learner", "reducer.mean_gradients"), "share"] == pytest.approx(0.1)
    assert found.loc[("learner", REST), "seconds"] == pytest.approx(4.0)
    assert found.loc["learner", "waiting"].tolist() == [True, False, False, False]
    actor = found.loc[("actor", "env.recv")]
    assert actor[["ranks", "seconds", "share_min", "share_max"]].tolist() == [2, 5.5, 0.5, 0.6]
    assert actor["ms_per_call"] == 550.0


def test_time_before_the_first_env_step_is_part_of_the_whole(tmp_path):
    run = make_run(tmp_path, actors=6)  # the sixth actor: 10 s in a hop of 10 s; one more second came before
    with RunLog(run / "attempts/002.h5", config_json="{}", provenance={}, attempt=2) as log:
        row = {"role": "actor", "role_rank": 0, "hop": "env.recv", "seconds": 5.0, "count": 1}
        log.append("timers", TABLES["timers"].row(time_s=4.0, **row))
    found = time_shares([run])
    assert found[found["attempt"] == 2]["share"].tolist() == [1.0, 0.0]


@pytest.fixture
def with_own_times(tmp_path):
    """A learner of 10 s, and two roles of one rank of 8 s; each has written before, too."""
    run = make_run(tmp_path, actors=1)
    hops = [
        ("learner", 0, "start", 1.0, 1.0, 10.0),
        ("learner", 0, "algorithm.update", 6.0, 4.0, 10.0),
        ("learner", 0, "reducer.mean_gradients", 2.0, 0.5, 10.0),
        ("learner", 0, "reducer.wait", 1.5, 1.5, 10.0),
        ("learner", 0, "batch.wait", 3.0, 3.0, 10.0),
        ("replay", 0, "replay.insert", 2.0, 2.0, 8.0),
        ("replay", 0, "limiter.sample_wait", 7.0, 0.0, 8.0),
        ("actor", 0, "env.recv", 5.98, 5.98, 8.0),
        ("actor", 0, "grant.wait", 2.0, 0.02, 8.0),
    ]
    with RunLog(run / "attempts/002.h5", config_json="{}", provenance={}, attempt=2) as log:
        for part in (0.5, 1.0):
            for role, rank, hop, seconds, own_s, age_s in hops:
                times = {"seconds": part * seconds, "own_s": part * own_s, "age_s": part * age_s}
                row = TABLES["timers"].row(time_s=part, role=role, role_rank=rank, hop=hop, count=2, **times)
                log.append("timers", row)
    return run


def test_own_times_add_up_without_a_rest(with_own_times):
    table = time_shares([with_own_times])
    found = table[table["attempt"] == 2].set_index(["role", "hop"])
    assert found["share"].groupby("role").sum().tolist() == pytest.approx([1.0, 1.0, 1.0])
    learner = found.loc["learner", "share"].to_dict()
    assert learner == pytest.approx(
        {
            "start": 0.1,
            "batch.wait": 0.3,
            "algorithm.update": 0.4,
            "reducer.mean_gradients": 0.05,
            "reducer.wait": 0.15,
        }
    )
    assert found.loc[("replay", OTHERS), "seconds"] == pytest.approx(6.0)
    assert found.loc[("actor", OTHERS), "share"] == pytest.approx(0.25)
    assert ("replay", "limiter.sample_wait") not in found.index  # lasted beside the rank's own time


def test_kinds_of_a_roles_own_time(with_own_times):
    kinds = by_kind(time_shares([with_own_times])).set_index(["attempt", "role"]).loc[2]
    learner = kinds.loc["learner", ["compute", "communicate", "wait", "rest"]]
    assert learner.tolist() == pytest.approx([0.4, 0.05, 0.45, 0.1])
    assert kinds.loc["actor", ["compute", "wait"]].tolist() == pytest.approx([5.98 / 6, 0.02 / 6])


def test_the_picture_leaves_small_hops_without_a_color(with_own_times):
    (legend,) = draw(time_shares([with_own_times])).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert "each below 0.5%" in names and "grant.wait" not in names
    assert names[-2:] == [OTHERS, REST] and "batch.wait" in names


def test_traffic_has_the_waits_of_receivers_and_of_sums(with_own_times):
    with RunLog(with_own_times / "attempts/003.h5", config_json="{}", provenance={}, attempt=3) as log:
        for rank, role in enumerate(("replay", "learner")):
            log.append("ranks", TABLES["ranks"].row(world_rank=rank, role=role, role_rank=0))
        for stream, source, dest in (("batch", 0, 1), ("sums", 1, -1)):
            row = {"stream": stream, "source": source, "dest": dest, "messages": 1, "bytes": 8, "wait_s": 0.0}
            log.append("edges", TABLES["edges"].row(time_s=1.0, **row))
        row = {"role": "learner", "role_rank": 0, "hop": "batch.wait", "seconds": 3.0, "count": 1}
        log.append("timers", TABLES["timers"].row(time_s=1.0, **row))
    found = traffic([with_own_times])
    found = found[found["attempt"] == 3].set_index("stream")
    assert found.loc["batch", ["source", "dest", "dest_wait_s"]].tolist() == ["replay", "learner", 3.0]
    assert found.loc["sums", "dest"] == "all learners" and np.isnan(found.loc["sums", "dest_wait_s"])


def test_traffic_is_summed_from_role_to_role(tmp_path):
    row = traffic([make_run(tmp_path, actors=2)]).iloc[0]
    expected = ["trajectory", "actor", "replay", 2, 20, 4.0, 1.0, 0.4]
    assert (
        row[["stream", "source", "dest", "edges", "messages", "megabytes", "wait_s", "MB_per_s"]].tolist()
        == expected
    )


def test_cost_counts_every_attempt_with_its_nodes_and_what_was_lost(tmp_path):
    run = make_run(tmp_path, attempts=2, lost=3)
    row = cost([run]).iloc[0]
    assert row[["attempts", "nodes", "wall_s", "env_steps", "lost_updates"]].tolist() == [2, 2, 20.0, 1700, 3]
    assert row["node_hours"] == pytest.approx(2 * 20 / 3600) and row["core_hours"] == pytest.approx(
        8 * 20 / 3600
    )
    assert row["env_steps_per_node_hour"] == pytest.approx(1700 / (40 / 3600))


def test_cost_counts_the_time_of_a_killed_attempt_that_was_lost_with_it(tmp_path):
    """The first came to 10 s; the second begins again, and another 10 s later it is where the first was."""
    run = make_run(tmp_path, attempts=2, lost=10)
    with RunLog(run / "attempts/003.h5", config_json="{}", provenance={}, attempt=3, first_update=0) as log:
        log.append("updates", TABLES["updates"].row(update=1, env_steps=100, time_s=1.0, applied=True))
    row = cost([run]).iloc[0]
    assert row["wall_s"] == 21.0 and load_run(run)["updates"]["wall_s"].tolist() == [21.0]


def test_cost_counts_the_nodes_that_the_job_was_given(tmp_path):
    given = {"environment": {"SLURM_JOB_NUM_NODES": "5"}, "collected_at": "2026-01-01T00:00:00+00:00"}
    row = cost([make_run(tmp_path, provenance=given)]).iloc[0]
    assert row["nodes"] == 5 and row["node_hours"] > 5 * 10 / 3600  # written after 2026 began


def test_the_cost_of_a_return_ends_where_it_was_first_reached(tmp_path):
    returns = np.r_[10.0, np.zeros(99), np.full(100, 10.0)]  # 20 episodes per update; the first is luck
    run = make_run(tmp_path, returns=returns, attempts=2)
    row = cost([run], target=5.0).iloc[0]
    # the mean of the last 100 is 5 after 150 episodes: in update 8
    assert row[["env_steps_to_target", "wall_s_to_target"]].tolist() == [800.0, 8.0]
    assert row["node_hours_to_target"] == pytest.approx(2 * 8 / 3600)
    assert np.isnan(cost([run], target=11.0)["node_hours_to_target"][0])


def test_bands_hold_the_interquartile_mean_of_the_seeds(tmp_path):
    runs = [
        make_run(tmp_path, seed=seed, returns=[value] * 10)
        for seed, value in enumerate((1.0, 2.0, 3.0, 30.0))
    ]
    frame, figure = seed_bands(runs)
    assert len(frame) == PLACES and set(frame["seeds"]) == {4}
    assert frame["return_iqm"].tolist() == [2.5] * PLACES  # without the lowest and the highest
    assert (frame["return_low"] < 2.5).all() and (frame["return_high"] > 2.5).all()
    assert frame["env_steps"].iloc[[0, -1]].tolist() == [100.0, 1000.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["toy (4 seeds)"]


def test_a_band_ends_with_its_shortest_seed(tmp_path):
    runs = [
        make_run(tmp_path, seed=0, attempts=2),
        make_run(tmp_path, seed=1),
        make_run(tmp_path, algorithm="a2c"),
    ]
    frame, _ = seed_bands(runs)
    assert frame.groupby("setting")["env_steps"].max().to_dict() == {"ppo": 1000.0, "a2c": 1000.0}
    assert frame[frame["setting"] == "a2c"]["return_low"].isna().all()  # one seed has no interval


def test_cores_are_read_from_ranges():
    assert parse_cores("0-2,7") == {0, 1, 2, 7} and parse_cores("") == set() and parse_cores("all") == set()
    ranks = pd.DataFrame(
        {"attempt": 1, "role": ["actor", "actor"], "node": ["a", "b"], "cores": ["0-1", "?"]}
    )
    assert used(ranks)["cores"] == 3 and used(ranks.head(0))["ranks"] == 0
