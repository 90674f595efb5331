"""A gradient that is computed in one place and applied in another: the same update."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hpcrl.algorithms import Batch, LocalReducer
from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm
from hpcrl.config import A2CConfig, A3CConfig
from hpcrl.data.specs import EnvSpec, gradient_spec
from hpcrl.data.trajectory import TrajectoryLayout
from tests.unit.algorithms.support import CONTINUOUS, DISCRETE, build, random_batch, split, without_noise

LOCAL = LocalReducer()
OPTIONS = {"learning_rate": 3e-3, "gae_lambda": 0.9}


def sent(workers: list[ActorCriticAlgorithm], batches: list[Batch], update: int = 0) -> Batch:
    """What a learner gets of these workers, each with its batch, as it travels."""
    layout = TrajectoryLayout(gradient_spec(workers[0].gradient_fields))
    fields: dict[str, list[np.ndarray]] = {}
    for worker, batch in zip(workers, batches, strict=True):
        row = layout.begin(layout.allocate(1)[0], attempt=0, version=0, actor=0, grant=0, envs=range(1))
        for name, values in worker.gradient(batch.fields).items():
            row.fields[name][0, 0] = values
        row.fields["env_steps"][...] = batch.fields["valid"].sum()
        for name, values in row.fields.items():
            fields.setdefault(name, []).append(values)
    tensors = {name: torch.from_numpy(np.concatenate(values, 1)) for name, values in fields.items()}
    return Batch(fields=tensors, column_offset=0, total_columns=len(batches), update=update)


@pytest.mark.parametrize("env", [DISCRETE, CONTINUOUS])
def test_a_gradient_that_is_not_late_is_that_of_a2c(env: EnvSpec) -> None:
    a2c, worker, learner = (build(config(**OPTIONS), env) for config in (A2CConfig, A3CConfig, A3CConfig))
    worker.chunk_rows = a2c.chunk_rows = 13  # in parts
    for update in range(3):
        batch = random_batch(env, 5, 7, seed=update, update=update)
        worker.parameters.load(learner.parameters.numpy)
        expected = a2c.update(batch, LOCAL, 0.5)
        result = learner.update(sent([worker], [batch], update), LocalReducer(), 0.5)
        assert result.applied
        np.testing.assert_equal(result.metrics, without_noise(expected))
        assert learner.parameters.sha256() == a2c.parameters.sha256()
    assert worker.optimizer.steps == 0


def test_several_gradients_count_by_their_env_steps() -> None:
    batch = random_batch(DISCRETE, 5, 7, seed=2)
    a2c, learner = build(A2CConfig(**OPTIONS)), build(A3CConfig(**OPTIONS))
    shares = split(batch, (5, 2))
    workers = [build(A3CConfig(**OPTIONS)) for _ in shares]
    expected = a2c.update(batch, LOCAL, 0.0).metrics
    assert learner.update(sent(workers, shares), LocalReducer(), 0.0).metrics == pytest.approx(
        expected, rel=1e-4
    )
    np.testing.assert_allclose(learner.parameters.numpy, a2c.parameters.numpy, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_not_applied() -> None:
    batch = random_batch(DISCRETE, 5, 7, seed=3)
    batch.fields["reward"][0, 3] = math.nan
    worker, learner = (build(A3CConfig(**OPTIONS)) for _ in range(2))
    before = learner.parameters.sha256()
    assert not learner.update(sent([worker], [batch]), LOCAL, 0.0).applied
    assert learner.parameters.sha256() == before
    good = random_batch(DISCRETE, 5, 7, seed=4)
    assert learner.update(sent([worker], [good]), LOCAL, 0.0).applied


def test_others_send_no_gradients() -> None:
    algorithm = build(A2CConfig())
    with pytest.raises(NotImplementedError, match="A2C computes no gradients"):
        algorithm.gradient(random_batch(DISCRETE, 5, 7, seed=3).fields)
