"""R2D2 through all roles: sequences that go on over the ends of episodes, stored states, priorities of both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.system.support import TOY, run

R2D2 = TOY | {
    "env": {"id": "recall", "engine": "toy", "num_envs": 6, "kwargs": {"size": 2, "delay": 1}},
    "model": {"hidden_sizes": [8], "recurrent": "lstm", "recurrent_size": 5},
    "algorithm": {
        "name": "r2d2",
        "unroll_length": 4,
        "batch_size": 6,
        "burn_in_steps": 4,
        "trained_steps": 4,
        "n_step": 2,
        "target_update_updates": 5,
    },
    "replay": {"capacity": 240, "min_size": 96, "sampling": "prioritized", "samples_per_insert": 0.5},
    "budget": {"env_steps": 400},
}


def test_r2d2_on_one_rank(tmp_path: Path) -> None:
    """Episodes of three env_steps and a reset step: of every sequence that is trained on a quarter is not valid."""
    ended = run(tmp_path, recipe=R2D2, ranks=1)
    assert ended.weights()
    updates = ended.table("updates")
    assert len(updates) > 20
    for name in ("value_loss", "q_value", "q_target", "td_error", "grad_norm"):
        assert np.isfinite(updates[name]).all(), name
    assert (updates["td_error"] > 0).all()
    np.testing.assert_allclose(updates["valid_fraction"], 0.75)
