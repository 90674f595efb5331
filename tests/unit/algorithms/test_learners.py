"""Several learners are one: results do not depend on how a batch is divided, and all decide alike."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcrl.algorithms.gradient import (
    FlatAdam,
    GradientStep,
    ReducedGradient,
    open_gradient,
    reduce_gradient,
)
from hpcrl.config import PPOConfig, SurrogateConfig
from hpcrl.data.specs import EnvSpec
from tests.unit.algorithms.support import (
    CONFIGS,
    CONTINUOUS,
    DISCRETE,
    Learners,
    ThreadReducer,
    build,
    random_batch,
    split,
    train,
    without_noise,
)

UPDATES = 4
SPLITS = [(4, 3), (7, 0), (1, 0, 6), (2, 2, 2, 1), (0, 0, 7)]


def same_metrics(first: dict[str, float], second: dict[str, float], tolerance: float) -> bool:
    keys_match = first.keys() == second.keys()
    return keys_match and all(
        np.isclose(first[name], second[name], rtol=tolerance, atol=tolerance, equal_nan=True)
        for name in first
    )


def check_rank_invariance(name: str, sizes: tuple[int, ...], env: EnvSpec = DISCRETE) -> None:
    batches = [random_batch(env, 5, 7, seed=update, update=update) for update in range(UPDATES)]
    alone = build(CONFIGS[name], env)
    start = alone.parameters.numpy.copy()
    (expected,) = train([alone], [[batch] for batch in batches])
    learners = [build(CONFIGS[name], env) for _ in sizes]
    results = train(learners, [split(batch, sizes) for batch in batches])
    assert np.abs(alone.parameters.numpy - start).max() > 3e-3, "nothing was learned"
    for learner, result in zip(learners, results, strict=True):
        np.testing.assert_allclose(learner.parameters.numpy, alone.parameters.numpy, atol=1e-5)
        assert learner.parameters.sha256() == learners[0].parameters.sha256()
        for own, first, reference in zip(result, results[0], expected, strict=True):
            assert own.applied
            assert same_metrics(own.metrics, first.metrics, 0.0)
            assert same_metrics(without_noise(own), without_noise(reference), 1e-3)


def check_not_finite_on_one_learner(name: str, field: str, value: float) -> None:
    good, bad, last = (random_batch(DISCRETE, 5, 6, seed=seed, update=seed) for seed in range(3))
    step = int(bad.fields["valid"][:, 4].nonzero()[0])
    bad.fields[field][step, 4] = value
    sizes = (2, 1, 3)
    learners = [build(CONFIGS[name]) for _ in sizes]
    train(learners, [split(good, sizes)])
    before = [learner.state() for learner in learners]
    results = train(learners, [split(bad, sizes)])
    assert [result[0].applied for result in results] == [False] * 3
    for learner, state in zip(learners, before, strict=True):
        for entry, values in learner.state().items():
            np.testing.assert_array_equal(values, state[entry], err_msg=entry)
    results = train(learners, [split(last, sizes)])
    assert [result[0].applied for result in results] == [True] * 3
    assert len({learner.parameters.sha256() for learner in learners}) == 1
    assert not np.array_equal(learners[0].parameters.numpy, before[0]["parameters"])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sizes", SPLITS)
def test_rank_invariance(name: str, sizes: tuple[int, ...]) -> None:
    check_rank_invariance(name, sizes)


@pytest.mark.parametrize("name", CONFIGS)
def test_rank_invariance_with_continuous_actions(name: str) -> None:
    check_rank_invariance(name, (3, 1, 3), CONTINUOUS)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("field", "value"),
    [("reward", math.nan), ("reward", math.inf), ("obs", math.nan), ("behavior_log_prob", math.nan)],
)
def test_not_finite_on_one_learner(name: str, field: str, value: float) -> None:
    check_not_finite_on_one_learner(name, field, value)


@pytest.mark.parametrize("name", CONFIGS)
def test_unchecked_a_gradient_that_is_not_finite_is_applied(name: str) -> None:
    batch = random_batch(DISCRETE, 5, 4, seed=0)
    batch.fields["reward"][0, 1] = math.nan
    learner = build(CONFIGS[name])
    (result,) = train([learner], [[replace(batch, check_finite=False)]])[0]
    assert result.applied
    assert np.isnan(learner.parameters.numpy).any()


def test_a_late_minibatch_that_is_not_finite_takes_back_the_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = PPOConfig(normalize_advantages=False, num_minibatches=10, epochs=1)
    batch = random_batch(DISCRETE, 5, 4, seed=0)
    batch.fields["reward"][0, 1] = math.nan  # reaches only the first step of one column
    learners = [build(config) for _ in range(2)]
    start = learners[0].state()
    taken: list[float] = []
    step = FlatAdam.step
    monkeypatch.setattr(
        FlatAdam, "step", lambda self, rate, *rest: (taken.append(rate), step(self, rate, *rest))
    )
    results = train(learners, [split(batch, (3, 1))])
    assert len(taken) >= 2, "the bad sample was to lie behind a good minibatch"
    assert [result[0].applied for result in results] == [False, False]
    for learner in learners:
        for entry, values in learner.state().items():
            np.testing.assert_array_equal(values, start[entry])


def test_the_kl_stop_is_agreed_on() -> None:
    config = PPOConfig(target_kl=0.3, epochs=5, num_minibatches=2, learning_rate=1e-5)
    batch = random_batch(DISCRETE, 5, 6, seed=1)
    batch.fields["behavior_log_prob"].fill_(-math.log(3))
    batch.fields["behavior_log_prob"][:, 4:] = -3.5  # only the last learner's policy looks far away
    learners = [build(config) for _ in range(3)]
    train(learners, [split(batch, (2, 2, 2))])
    steps = {learner.optimizer.steps for learner in learners}
    assert len(steps) == 1
    assert steps.pop() < 10
    near = build(config)
    batch.fields["behavior_log_prob"].fill_(-math.log(3))
    train([near], [[batch]])
    assert near.optimizer.steps == 10


def test_the_gradient_is_clipped_after_averaging() -> None:
    learners = [build(CONFIGS["impala"]) for _ in range(2)]
    size = learners[0].parameters.size

    def work(rank: int, reducer: ThreadReducer) -> ReducedGradient:
        parameters = learners[rank].parameters
        open_gradient(parameters, reducer)
        parameters.gradient[rank] = (30.0, 400.0)[rank]
        return reduce_gradient(reducer, (9, 1)[rank], 1.0, max_norm=1.0)

    gradients = Learners(2).run(work)
    expected = torch.zeros(size)
    expected[0], expected[1] = 3.0, 40.0
    norm = math.hypot(3, 40)
    for gradient in gradients:
        assert gradient.norm == pytest.approx(norm)
        np.testing.assert_allclose(gradient.vector * gradient.scale, expected / norm, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "calls"),
    [("a2c", 2), *((name, 2 + 2 * 3 + 1) for name in ("decoupled_ppo", "impact", "ppo")), ("impala", 2)],
)
@pytest.mark.parametrize("sizes", [(1,), (0, 1), (4, 3, 0)])
def test_every_learner_reduces_equally_often(name: str, calls: int, sizes: tuple[int, ...]) -> None:
    batch = random_batch(DISCRETE, 3, sum(sizes), seed=0)
    learners = [build(CONFIGS[name]) for _ in sizes]
    world = Learners(len(sizes))
    shares = split(batch, sizes)
    world.run(lambda rank, reducer: learners[rank].update(shares[rank], reducer, 0.0))
    assert [reducer.calls for reducer in world.reducers] == [calls] * len(sizes)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_valid_step_anywhere_changes_nothing(name: str) -> None:
    batch = random_batch(DISCRETE, 3, 4, seed=0)
    batch.fields["valid"].fill_(False)
    learners = [build(CONFIGS[name]) for _ in range(2)]
    before = learners[0].parameters.sha256()
    results = train(learners, [split(batch, (3, 1))])
    for learner, result in zip(learners, results, strict=True):
        assert result[0].applied
        assert learner.parameters.sha256() == before
        assert learner.optimizer.steps == 0


def test_several_chunks_are_all_in_the_gradient_before_it_is_summed() -> None:
    batch = random_batch(DISCRETE, 5, 7, seed=3)
    whole = build(CONFIGS["impala"])
    train([whole], [[batch]])
    learners = [build(CONFIGS["impala"]) for _ in range(2)]
    for learner in learners:
        learner.chunk_rows = 12  # two columns
    train(learners, [split(batch, (5, 2))])
    for learner in learners:
        np.testing.assert_allclose(learner.optimizer.exp_avg, whole.optimizer.exp_avg, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_passes_of_a_few_rows_add_up_to_the_gradient_of_one(name: str) -> None:
    """On learners of uneven shares, and one without any."""
    one_step = ["epochs=1", "num_minibatches=1"] if isinstance(CONFIGS[name], SurrogateConfig) else []
    config = CONFIGS[name].with_overrides([*one_step, "max_grad_norm=1000"])
    batch = random_batch(DISCRETE, 5, 7, seed=3)
    whole = build(config)
    train([whole], [[batch]])
    gradient = whole.optimizer.exp_avg
    assert gradient.abs().max() > 0.01
    for sizes in ((7,), (4, 0, 3)):
        learners = [build(config.with_overrides(["rows_per_pass=6"])) for _ in sizes]
        results = train(learners, [split(batch, sizes)])
        for learner, result in zip(learners, results, strict=True):
            np.testing.assert_allclose(learner.optimizer.exp_avg, gradient, rtol=1e-6, atol=1e-7)
            assert result[0].metrics["grad_variance"] != 0


@pytest.mark.parametrize(
    ("shares", "parts", "expected"),
    [
        ((4, 4), 1, (1.0, 26.0)),  # norms 5 and 10 of two learners, 4.25 of both
        ((4, 4), 2, (1.0, 26.0)),
        ((8,), 1, None),
        ((8, 0), 1, None),
    ],
)
def test_the_noise_of_a_gradient_is_seen_by_learners_or_passes(
    shares: tuple[int, ...], parts: int, expected: tuple[float, float] | None
) -> None:
    """Samples in two halves, with mean gradients (1, 2) and (3, -1)."""
    halves = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    groups = [[0], [1]] if len(shares) == 2 and shares[1] else [[0, 1]] + [[]] * (len(shares) - 1)
    learners = [build(CONFIGS["impala"]) for _ in shares]

    def work(rank: int, reducer: ThreadReducer) -> ReducedGradient:
        parameters = learners[rank].parameters
        step = GradientStep(parameters, reducer, alone=shares[rank] == 8)
        bias = learners[rank].network.policy_head.bias
        if groups[rank]:
            count = shares[rank] // parts
            for part in range(parts):
                along = sum(halves[half] for half in groups[rank]) / len(groups[rank])
                step.add((bias[:2] * along).sum() * count, count, 0.0, last=part == parts - 1)
        return step.reduce(1e6)

    gradients = Learners(len(shares)).run(work)
    for gradient in gradients:
        assert gradient.norm**2 == pytest.approx(4.25)
        if expected is None:
            assert math.isnan(gradient.square) and math.isnan(gradient.variance)
        elif parts == 1:
            assert (gradient.square, gradient.variance) == pytest.approx(expected)
        else:  # the first pass alone: 7.5 of 2 samples, 4.25 of 8
            assert gradient.variance == pytest.approx((7.5 - 4.25) / (1 / 2 - 1 / 8))


@pytest.mark.parametrize("name", CONFIGS)
def test_learners_that_share_an_optimizer_learn_the_same(name: str) -> None:
    batches = [random_batch(DISCRETE, 5, 6, seed=seed, update=seed) for seed in range(3)]
    apart = [build(CONFIGS[name]) for _ in range(2)]
    train(apart, [split(batch, (4, 2)) for batch in batches])
    together = [build(CONFIGS[name]) for _ in range(2)]
    memories = [vector.clone() for vector in together[0].vectors()]
    world = Learners(2)
    halves = (range(32), range(32, memories[0].numel()))

    def work(rank: int, reducer: ThreadReducer) -> None:
        learner = together[rank]
        learner.share(memories, halves[rank], lambda: world.barrier.wait(60.0) and None)
        for batch in batches:
            learner.update(split(batch, (4, 2))[rank], reducer, 0.5)

    world.run(work)
    assert together[0].parameters.vector.data_ptr() == together[1].parameters.vector.data_ptr()
    for name_, values in apart[0].state().items():
        np.testing.assert_array_equal(together[0].state()[name_], values)
    together[0].release()
    memories[0].zero_()
    assert together[0].parameters.sha256() == apart[0].parameters.sha256()
