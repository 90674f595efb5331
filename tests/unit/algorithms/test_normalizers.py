"""Running moments of observations and returns: counted once, equal on all learners, published with the parameters."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcrl.algorithms import Batch, LocalReducer
from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm
from hpcrl.config import ImpalaConfig, PPOConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from tests.unit.algorithms.support import (
    CONFIGS,
    CONTINUOUS,
    DISCRETE,
    SMALL,
    Learners,
    ThreadReducer,
    build,
    random_batch,
    split,
)

LOCAL = LocalReducer()
MODEL = SMALL.with_overrides(["normalize_observations=true"])
SCALE = np.float32([1, 10, 0.01, 3])
OFFSET = np.float32([0, -50, 7, 1e4])


def make(name: str = "ppo", env: EnvSpec = DISCRETE, **options: object) -> ActorCriticAlgorithm:
    config = CONFIGS[name].model_copy(update={"normalize_returns": True, **options})
    return build(config, env, MODEL)


def raw_batch(seed: int, env: EnvSpec = DISCRETE, unroll_length: int = 5, num_columns: int = 7) -> Batch:
    """Observations and rewards of all sizes; NaN in what is not valid, but for the observation, which is an end's."""
    batch = random_batch(env, unroll_length, num_columns, seed, update=seed)
    fields = dict(batch.fields)
    fields["obs"] = fields["obs"] * torch.from_numpy(SCALE) + torch.from_numpy(OFFSET)
    fields["reward"] = fields["reward"] * 1000
    returns = torch.from_numpy(np.random.default_rng(seed).normal(200.0, 3000.0, fields["valid"].shape))
    fields["discounted_return"] = torch.where(fields["valid"], returns.float(), math.nan)
    return replace(batch, fields=fields)


def on_policy(actor: ActorCriticAlgorithm, batch: Batch) -> Batch:
    """The batch as if `actor` had chosen its actions."""
    obs, action = batch.fields["obs"][:-1].flatten(0, 1), batch.fields["action"].flatten(0, 1)
    with torch.no_grad():
        log_prob = actor.evaluate(obs, action)[0].view(batch.fields["valid"].shape)
    return replace(batch, fields={**batch.fields, "behavior_log_prob": log_prob})


def learn(algorithm: ActorCriticAlgorithm, batches: list[Batch]) -> None:
    for batch in batches:
        assert algorithm.update(batch, LOCAL, 0.5).applied
        algorithm.observe(batch, LOCAL)


def counted(batches: list[Batch], field: str) -> np.ndarray:
    """float64 [N, ...] of the valid env_steps."""
    parts = [batch.fields[field][: len(batch.fields["valid"])][batch.fields["valid"]] for batch in batches]
    return torch.cat(parts).double().numpy()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sizes", [(7,), (4, 3), (7, 0), (1, 0, 6), (0, 0, 7)])
def test_all_learners_have_the_moments_of_all_data(name: str, sizes: tuple[int, ...]) -> None:
    batches = [raw_batch(seed) for seed in range(3)]
    learners = [make(name) for _ in sizes]

    def work(rank: int, reducer: ThreadReducer) -> None:
        for batch in batches:
            share = split(batch, sizes)[rank]
            assert learners[rank].update(share, reducer, 0.5).applied
            before = reducer.calls
            learners[rank].observe(share, reducer)
            assert reducer.calls == before + 4

    Learners(len(sizes)).run(work)
    for learner in learners:
        for field in ("obs", "discounted_return"):
            values, moments = counted(batches, field), learner.normalizers.moments[field]
            assert moments.count == len(values)
            np.testing.assert_allclose(moments.mean, values.mean(0), rtol=1e-12)
            np.testing.assert_allclose(moments.variance, values.var(0), rtol=1e-9)
        for entry, values in learners[0].state().items():
            np.testing.assert_array_equal(learner.state()[entry], values, err_msg=entry)


@pytest.mark.parametrize("env", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_ratio_of_data_without_lag_is_one(name: str, env: EnvSpec) -> None:
    """Learner and actor normalize alike in every version, and the moments do not change before the update."""
    options = {} if name in ("a2c", "impala") else {"epochs": 1, "num_minibatches": 1}
    if name == "impact":
        options["target_update_updates"] = 1
    learner, actor = make(name, env, **options), make(name, env)
    for seed in range(3):
        actor.parameters.bind(learner.parameters.numpy.copy())
        obs = raw_batch(seed, env).fields["obs"][0].numpy()
        chosen = actor.act(obs, np.random.default_rng(0))
        again = learner.evaluate(torch.from_numpy(obs), torch.from_numpy(chosen["action"]))[0]
        np.testing.assert_allclose(chosen["behavior_log_prob"], again.detach(), atol=1e-5)
        batch = on_policy(actor, raw_batch(seed, env))
        result = learner.update(batch, LOCAL, 0.5)
        assert result.metrics["log_rho_mean"] == 0.0 == result.metrics["approx_kl"]
        learner.observe(batch, LOCAL)
    moved = np.abs(learner.parameters.numpy[-8:] - actor.parameters.numpy[-8:])
    assert moved.max() > 1e-3, "the moments are part of what was published"


def test_data_from_before_the_moments_changed_keep_their_log_prob() -> None:
    learner = make(epochs=1, num_minibatches=1)
    old = on_policy(learner, raw_batch(0))
    learn(learner, [raw_batch(1)])
    assert learner.update(old, LOCAL, 0.5).metrics["approx_kl"] > 0


def test_the_published_vector_holds_mean_and_inverse_standard_deviation() -> None:
    batches = [raw_batch(seed) for seed in range(3)]
    learner = make("impala")
    start = learner.parameters.numpy[-8:].tolist()
    assert start == [0.0] * 4 + [1.0] * 4
    learn(learner, batches)
    values = counted(batches, "obs")
    expected = np.concatenate([values.mean(0), 1 / np.sqrt(values.var(0) + MODEL.observation_epsilon)])
    np.testing.assert_allclose(learner.parameters.numpy[-8:], expected, rtol=1e-6)
    assert (
        learner.parameters.gradient_size == learner.parameters.size - 8 == learner.optimizer.exp_avg.numel()
    )


def test_rewards_are_divided_by_the_spread_of_returns_and_clipped() -> None:
    learner, batch = make(normalized_reward_clip=0.5), raw_batch(0)
    first = learner.training_reward(batch.fields)
    mask = batch.fields["valid"]
    np.testing.assert_array_equal(first[mask], batch.fields["reward"][mask].clamp(-0.5, 0.5))
    learn(learner, [batch])
    scaled = batch.fields["reward"].double().numpy() / counted([batch], "discounted_return").std()
    scaled[0, 0] *= 10
    batch.fields["reward"][0, 0] *= 10
    found = learner.training_reward(batch.fields)
    np.testing.assert_allclose(found, np.clip(scaled, -0.5, 0.5) * mask.numpy(), rtol=1e-5)
    assert (found.abs() == 0.5).any() and (found.abs() < 0.5).any()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("field", ["obs", "reward"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_is_not_hidden_by_a_clip(name: str, field: str, value: float) -> None:
    learner, batch = make(name), raw_batch(0)
    step = int(batch.fields["valid"][:, 4].nonzero()[0])
    batch.fields[field][step, 4] = value
    before = learner.state()
    assert not learner.update(batch, LOCAL, 0.5).applied
    for entry, values in learner.state().items():
        np.testing.assert_array_equal(values, before[entry], err_msg=entry)


def test_a_batch_with_values_that_are_not_finite_is_not_counted() -> None:
    """As long as the return of an episode is infinite; and where a gradient that is not finite is applied."""
    learner, good, bad = make(), raw_batch(0), raw_batch(1)
    learn(learner, [good])
    before = learner.state()
    bad.fields["discounted_return"][bad.fields["valid"]] = math.inf
    bad.fields["obs"][:, 2] = math.nan
    learner.observe(bad, LOCAL)
    for entry, values in learner.state().items():
        np.testing.assert_array_equal(values, before[entry], err_msg=entry)


@pytest.mark.parametrize("name", CONFIGS)
def test_state_round_trip_continues_bit_for_bit(name: str) -> None:
    first, second = make(name), make(name)
    learn(first, [raw_batch(0), raw_batch(1)])
    second.load_state(first.state())
    for algorithm in (first, second):
        learn(algorithm, [raw_batch(2)])
    assert first.state().keys() == second.state().keys()
    for entry, values in first.state().items():
        np.testing.assert_array_equal(values, second.state()[entry], err_msg=entry)


@pytest.mark.parametrize("entry", ["obs_mean", "obs_squares", "discounted_return_count"])
def test_a_state_without_moments_is_refused_by_name_and_changes_nothing(entry: str) -> None:
    learner, other = make(), make()
    learn(other, [raw_batch(0)])
    before, state = learner.state(), other.state()
    state.pop(entry)
    with pytest.raises(ValueError, match=entry):
        learner.load_state(state)
    for name, values in learner.state().items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)


def test_learners_that_share_an_optimizer_share_the_moments() -> None:
    """The last elements of the vector belong to a learner, but have no gradient."""
    batches, sizes = [raw_batch(seed) for seed in range(3)], (4, 3)
    apart, together = make("impala"), [make("impala") for _ in sizes]
    learn(apart, batches)
    memories = [vector.clone() for vector in together[0].vectors()]
    world = Learners(2)
    size = memories[0].numel()
    parts = (range(size - 3), range(size - 3, size))

    def work(rank: int, reducer: ThreadReducer) -> None:
        learner = together[rank]
        learner.share(memories, parts[rank], lambda: world.barrier.wait(60.0) and None)
        for batch in batches:
            share = split(batch, sizes)[rank]
            learner.update(share, reducer, 0.5)
            learner.observe(share, reducer)

    world.run(work)
    assert together[0].parameters.vector.data_ptr() == together[1].parameters.vector.data_ptr()
    np.testing.assert_allclose(together[1].parameters.numpy, apart.parameters.numpy, atol=1e-5)
    together[1].release()
    memories[0].zero_()
    np.testing.assert_allclose(together[1].parameters.numpy, apart.parameters.numpy, atol=1e-5)


def test_without_the_keys_nothing_is_there() -> None:
    plain = build(PPOConfig())
    assert plain.parameters.size == plain.parameters.gradient_size
    assert plain.state().keys() == {"parameters", "adam_exp_avg", "adam_exp_avg_sq", "adam_steps"}
    before = plain.state()
    plain.observe(random_batch(DISCRETE, 3, 4, seed=0), LOCAL)
    assert all(np.array_equal(values, before[name]) for name, values in plain.state().items())


def test_normalized_observations_of_any_offset_are_learned_from_alike() -> None:
    """After one batch only the first update, which saw observations as they come, differs."""
    outputs = []
    for offset in (0.0, 512.0):
        learner = build(ImpalaConfig(), DISCRETE, MODEL)
        batch = random_batch(DISCRETE, 5, 7, seed=0)
        batch.fields["obs"].mul_(2).round_().add_(offset)  # whole numbers: the offset costs no digits
        learner.observe(batch, LOCAL)
        outputs.append(learner.evaluate(batch.fields["obs"][0], batch.fields["action"][0])[2].detach())
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-4)


def test_the_mask_of_actions_is_neither_counted_nor_normalized() -> None:
    """It lies behind the observation, which has a shape of its own."""
    env = EnvSpec(
        id="Masked-v0",
        observation=ArraySpec(shape=(9,), dtype="float32"),
        action=ActionSpec(kind="discrete", size=3),
        masked=ArraySpec(shape=(2, 3), dtype="float32"),
    )
    learner = build(CONFIGS["impala"], env, MODEL)
    batch = random_batch(env, 5, 7, seed=0)
    batch.fields["obs"][..., 6:] = 1.0
    batch.fields["obs"][..., 8] = 0.0
    batch.fields["action"].remainder_(2)
    learn(learner, [batch])
    moments, values = learner.normalizers.moments["obs"], counted([batch], "obs")[:, :6]
    np.testing.assert_allclose(moments.mean, values.mean(0).reshape(2, 3), rtol=1e-12)
    logits = learner.network.policy(batch.fields["obs"][0])
    assert torch.isinf(logits[:, 2]).all() and torch.isfinite(logits[:, :2]).all()
