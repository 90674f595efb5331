"""Whose data were trained on, against whose environments there are."""

import json

import pytest

from hpcrl.config import RunConfig
from hpcrl.storage import TABLES, RunLog
from hpcrl.storage.shares import actor_shares, shares_text


def make_run(folder, trained, *, num_envs=5, drops=(), collected_in=1):
    """The result of one attempt with as many actors as `trained` has numbers."""
    config = RunConfig.parse(
        {
            "name": "x",
            "env": {"id": "x", "num_envs": num_envs},
            "algorithm": {"name": "impala"},
            "ranks": {"actors": len(trained)},
        }
    )
    path = folder / "attempts/001.h5"
    with RunLog(path, config_json=json.dumps(config.to_dict()), provenance={}, attempt=1) as log:
        raw = TABLES["trajectories"].rows(
            len(trained),
            update=1,
            collected_in=collected_in,
            actor=list(range(len(trained))),
            env_steps=list(trained),
        )
        log.append("trajectories", raw)
        log.append(
            "episodes", TABLES["episodes"].rows(2, actor=1, episode_length=[10, 20], truncated=[True, False])
        )
        for actor, count in drops:
            row = TABLES["events"].row(kind="dropped_trajectory", role="actor", role_rank=actor, count=count)
            log.append("events", row)
    return folder


def test_a_share_is_fair_when_it_is_that_of_the_environments(tmp_path):
    """Five environments on two actors are three and two."""
    shares = actor_shares(make_run(tmp_path, [60, 40]))
    assert [one["fair_fraction"] for one in shares] == [0.6, 0.4]
    assert [one["trained_fraction"] for one in shares] == [0.6, 0.4]
    assert [one["env_steps"] for one in shares] == [60, 40]
    assert [(one["episodes"], one["mean_episode_length"]) for one in shares] == [(0, None), (2, 15.0)]
    assert shares_text(shares) == "1.00 to 1.00 of their fair share of the env_steps"


def test_who_is_under_represented_is_named(tmp_path):
    shares = actor_shares(make_run(tmp_path, [90, 0], num_envs=4, drops=[(1, 3), (1, 4)]))
    assert [one["dropped"] for one in shares] == [0, 7]
    assert shares_text(shares) == (
        "0.00 to 2.00 of their fair share of the env_steps; least: actor 1 with 0.0 % instead of 50.0 %; "
        "7 trajectories dropped"
    )


def test_what_another_attempt_collected_is_nobodys(tmp_path):
    assert actor_shares(make_run(tmp_path, [1, 1], collected_in=0)) == []
    assert shares_text([]) == "not recorded"


@pytest.mark.parametrize("path", ["attempts/001.h5", "."])
def test_a_file_or_a_directory(tmp_path, path):
    make_run(tmp_path, [1, 1, 1])
    assert len(actor_shares(tmp_path / path)) == 3
