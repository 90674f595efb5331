"""Whole runs with actions and observations that are more than one number; the environments refuse what is wrong."""

import numpy as np

from tests.system.support import WITH_TESTS, run

HERE = "tests.system.spaces_envs"
WORLD = ("ranks.learners=2", "env.engine=custom", "budget.env_steps=300")


def test_masks_travel_from_the_environment_to_two_learners(tmp_path):
    ended = run(
        tmp_path, f"env.id={HERE}:Buttons", *WORLD, "model.recurrent=gru", mpiexec=4, environ=WITH_TESTS
    )
    ended.weights()
    # better than 2, 0, 2, 0, ... no policy can do, worse than 0, 1, 0, 1, ... neither
    assert ended.table("evaluation")["episode_return"].min() >= 3
    updates = ended.table("updates")
    assert np.isfinite(updates["policy_loss"]).all() and np.isfinite(updates["entropy"]).all()
    assert updates["entropy"].min() > 0 and updates["entropy"].max() < np.log(6)


def test_squashed_actions_reach_the_environment_scaled(tmp_path):
    settings = ("model.action_distribution=tanh_gaussian", "model.normalize_observations=true")
    ended = run(tmp_path, f"env.id={HERE}:Valve", *WORLD[1:], *settings, ranks=1, environ=WITH_TESTS)
    assert ended.table("evaluation")["episode_return"].min() > 12


def test_a_mask_that_allows_nothing_ends_the_run_with_the_name_of_the_environment(tmp_path):
    settings = ("env.engine=custom", "env.kwargs.stuck_at=3")
    ended = run(tmp_path, f"env.id={HERE}:Buttons", *settings, ranks=1, environ=WITH_TESTS)
    assert ended.code == 3
    assert f"env.id='{HERE}:Buttons': the action mask of row 0 allows no choice of part 0" in ended.stderr
