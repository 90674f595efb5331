"""Algorithms that learn from replay: learners that are one, targets that follow, weights, priorities, state."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcrl.algorithms import Batch, LocalReducer
from tests.unit.algorithms.replayed import SETUPS, build_setup, replayed
from tests.unit.algorithms.support import Learners, split, train, without_noise

LOCAL = LocalReducer()
UPDATES = 4
COLUMNS = 7


def batches(name: str, count: int = UPDATES) -> list[Batch]:
    setup = SETUPS[name]
    return [replayed(build_setup(setup), setup.env, COLUMNS, seed) for seed in range(count)]


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("sizes", [(4, 3), (7, 0), (1, 0, 6), (2, 2, 2, 1)])
def test_rank_invariance(name: str, sizes: tuple[int, ...]) -> None:
    alone, given = build_setup(SETUPS[name]), batches(name)
    start = alone.parameters.numpy.copy()
    (expected,) = train([alone], [[batch] for batch in given])
    learners = [build_setup(SETUPS[name]) for _ in sizes]
    results = train(learners, [split(batch, sizes) for batch in given])
    assert np.abs(alone.parameters.numpy - start).max() > 3e-3, "nothing was learned"
    for learner in learners:
        np.testing.assert_allclose(learner.parameters.numpy, alone.parameters.numpy, atol=1e-5)
        assert learner.parameters.sha256() == learners[0].parameters.sha256()
        np.testing.assert_array_equal(learner.target.vector, learners[0].target.vector)
    for update, reference in enumerate(expected):
        own = [result[update] for result in results]
        for one in own:
            assert without_noise(one) == pytest.approx(
                without_noise(reference), rel=1e-3, abs=1e-3, nan_ok=True
            )
        together = np.concatenate([one.priorities for one in own])
        assert together.dtype == np.float32
        np.testing.assert_allclose(together, reference.priorities, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("field", ["reward", "obs", "weight"])
def test_not_finite_on_one_learner_changes_nothing_on_any(name: str, field: str) -> None:
    good, bad, last = batches(name, 3)
    bad.fields["valid"][-1, 4] = True
    bad.fields[field][-1, 4] = math.nan
    sizes = (2, 1, 4)
    learners = [build_setup(SETUPS[name]) for _ in sizes]
    train(learners, [split(good, sizes)])
    before = [learner.state() for learner in learners]
    results = train(learners, [split(bad, sizes)])
    for learner, (result,), state in zip(learners, results, before, strict=True):
        assert (result.applied, result.priorities) == (False, None)
        np.testing.assert_equal(learner.state(), state)
    results = train(learners, [split(last, sizes)])
    assert all(result.applied and np.isfinite(result.priorities).all() for (result,) in results)


@pytest.mark.parametrize("name", SETUPS)
def test_state_round_trip_continues_bit_for_bit(name: str) -> None:
    first, given = build_setup(SETUPS[name]), batches(name)
    for batch in given[:3]:
        first.update(batch, LOCAL, 0.0)
    assert not torch.equal(first.target.vector, first.parameters.vector)
    second = build_setup(SETUPS[name], seed=1)
    second.seed = (
        first.seed
    )  # what noise within updates is drawn by; a resumed run has it from its configuration
    second.load_state(first.state())
    results = [algorithm.update(given[3], LOCAL, 0.0) for algorithm in (first, second)]
    np.testing.assert_equal(results[0].metrics, results[1].metrics)
    np.testing.assert_array_equal(results[0].priorities, results[1].priorities)
    np.testing.assert_equal(first.state(), second.state())


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("sizes", [(1,), (0, 1), (4, 3, 0)])
def test_every_learner_reduces_equally_often(name: str, sizes: tuple[int, ...]) -> None:
    learners = [build_setup(SETUPS[name]) for _ in sizes]
    shares = split(replayed(learners[0], SETUPS[name].env, sum(sizes), 0), sizes)
    world = Learners(len(sizes))
    world.run(lambda rank, reducer: learners[rank].update(shares[rank], reducer, 0.0))
    assert [reducer.calls for reducer in world.reducers] == [2] * len(sizes)


@pytest.mark.parametrize("name", SETUPS)
def test_passes_of_a_few_rows_add_up_to_the_gradient_of_one(name: str) -> None:
    (batch,) = batches(name, 1)
    whole, parts = (build_setup(SETUPS[name]) for _ in range(2))
    parts.chunk_rows = 2 * (parts.config.sequence_steps + 1)
    results = [algorithm.update(batch, LOCAL, 0.0) for algorithm in (whole, parts)]
    assert whole.optimizer.exp_avg.abs().max() > 1e-3
    np.testing.assert_allclose(parts.optimizer.exp_avg, whole.optimizer.exp_avg, atol=1e-7, rtol=1e-4)
    np.testing.assert_allclose(results[0].priorities, results[1].priorities, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SETUPS)
def test_what_is_not_valid_does_not_matter(name: str) -> None:
    (batch,) = batches(name, 1)
    batch.fields["valid"][:, 2] = False
    batch.fields["valid"][0, 5] = False  # with sequences: inside of one
    invalid = ~batch.fields["valid"]
    changed = replace(batch, fields={key: values.clone() for key, values in batch.fields.items()})
    changed.fields["reward"][invalid] = math.nan
    changed.fields["action"][invalid] = (changed.fields["action"][invalid] + 1) % 3
    first, second = build_setup(SETUPS[name]), build_setup(SETUPS[name])
    results = [first.update(batch, LOCAL, 0.0), second.update(changed, LOCAL, 0.0)]
    assert [result.applied for result in results] == [True, True]
    assert first.parameters.sha256() == second.parameters.sha256()
    np.testing.assert_equal(results[0].metrics, results[1].metrics)
    np.testing.assert_array_equal(results[0].priorities, results[1].priorities)


@pytest.mark.parametrize("name", SETUPS)
def test_the_gradient_of_a_column_is_in_proportion_to_its_weight(name: str) -> None:
    (batch,) = batches(name, 1)
    gradients = []
    for weight in (0.0, 0.5, 1.0):
        algorithm = build_setup(SETUPS[name])
        batch.fields["weight"].fill_(1.0)
        batch.fields["weight"][0, 3] = weight
        result = algorithm.update(batch, LOCAL, 0.0)
        assert result.metrics["grad_norm"] < algorithm.config.max_grad_norm, "clipping would hide it"
        gradients.append(algorithm.optimizer.exp_avg.clone())
        assert result.priorities is not None and result.priorities[3] > 0, "errors are not weighted"
    assert (gradients[2] - gradients[0]).abs().max() > 1e-4
    torch.testing.assert_close(2 * gradients[1], gradients[0] + gradients[2])


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize(("every", "tau"), [(1, 1.0), (3, 1.0), (1, 0.25), (2, 0.5)])
def test_the_target_network_follows(name: str, every: int, tau: float) -> None:
    config = SETUPS[name].config.with_overrides([f"target_update_updates={every}", f"target_tau={tau}"])
    algorithm = build_setup(SETUPS[name]._replace(config=config))
    expected = algorithm.parameters.vector.clone()
    for update, batch in enumerate(batches(name)):
        algorithm.update(batch, LOCAL, 0.0)
        if (update + 1) % every == 0:
            expected += tau * (algorithm.parameters.vector - expected)
        torch.testing.assert_close(algorithm.target.vector, expected)


@pytest.mark.parametrize("name", SETUPS)
def test_targets_are_of_the_target_network(name: str) -> None:
    """With other parameters there, another gradient."""
    (batch,) = batches(name, 1)
    gradients = []
    for shift in (0.0, 0.3):
        algorithm = build_setup(SETUPS[name])
        algorithm.target.vector += shift
        before = algorithm.parameters.vector.clone()
        algorithm.config = algorithm.config.model_copy(update={"target_update_updates": 99})
        result = algorithm.update(batch, LOCAL, 0.0)
        gradients.append(algorithm.optimizer.exp_avg.clone())
        torch.testing.assert_close(algorithm.target.vector, before + shift)
        assert result.applied
    assert not torch.allclose(gradients[0], gradients[1])


@pytest.mark.parametrize("name", SETUPS)
def test_learners_that_share_an_optimizer_learn_the_same(name: str) -> None:
    given = batches(name, 3)
    apart = [build_setup(SETUPS[name]) for _ in range(2)]
    train(apart, [split(batch, (4, 3)) for batch in given])
    together = [build_setup(SETUPS[name]) for _ in range(2)]
    memories = [vector.clone() for vector in together[0].vectors()]
    world = Learners(2)
    halves = (range(20), range(20, memories[0].numel()))

    def work(rank: int, reducer: object) -> None:
        learner = together[rank]
        learner.share(memories, halves[rank], lambda: world.barrier.wait(60.0) and None)
        for batch in given:
            learner.update(split(batch, (4, 3))[rank], reducer, 0.5)

    world.run(work)
    for learner in together:
        np.testing.assert_equal(learner.state(), apart[0].state())
