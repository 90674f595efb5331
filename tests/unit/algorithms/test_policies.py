"""Every algorithm with every kind of action, masks and squashed actions (P50, P51, P61, P64)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from hpcrl.algorithms import Batch, LocalReducer
from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm
from hpcrl.config import ModelConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec, trajectory_spec
from tests.unit.algorithms.support import CONFIGS, build, make_batch, random_batch, split, train

LOCAL = LocalReducer()
SEEN = ArraySpec(shape=(4,), dtype="float32")
BUTTONS = ActionSpec(kind="multi_discrete", size=2, choices=(3, 2))
BOX = ActionSpec(kind="continuous", size=2, low=(-1.0, 2.0), high=(1.0, 6.0))
MASKED = ArraySpec(shape=(9,), dtype="float32")
ENVS = {
    "multi_discrete": EnvSpec(id="Buttons-v0", observation=SEEN, action=BUTTONS),
    "masked": EnvSpec(id="Masked-v0", observation=MASKED, action=BUTTONS, masked=SEEN),
    "tanh_gaussian": EnvSpec(id="Box-v0", observation=SEEN, action=BOX),
}


def make(name: str, space: str, *overrides: str, seed: int = 0) -> ActorCriticAlgorithm:
    wanted = "tanh_gaussian" if space == "tanh_gaussian" else "auto"
    model = ModelConfig.parse({"hidden_sizes": (8,), "action_distribution": wanted})
    return build(CONFIGS[name].with_overrides(list(overrides)), ENVS[space], model, seed)


def acted(algorithm: ActorCriticAlgorithm, space: str, length: int = 5, columns: int = 6) -> Batch:
    """Random data whose actions this algorithm chose; after an end the mask allows nothing."""
    env = ENVS[space]
    batch = random_batch(env, length, columns, seed=3)
    rng = np.random.default_rng(1)
    obs = batch.fields["obs"]
    if env.mask_size:
        mask = torch.from_numpy(rng.random((length + 1, columns, 5)) < 0.5)
        mask[..., 0] |= ~mask[..., :3].any(-1)
        mask[..., 3] |= ~mask[..., 3:].any(-1)
        mask[:-1][~batch.fields["valid"]] = False
        obs[..., -5:] = mask
    steps = [algorithm.act(row.numpy(), rng) for row in obs[:-1]]
    for name in ("action", "behavior_log_prob"):
        batch.fields[name].copy_(torch.from_numpy(np.stack([step[name] for step in steps])))
    return batch


@pytest.mark.parametrize("space", ENVS)
@pytest.mark.parametrize("name", CONFIGS)
def test_fresh_data_have_ratio_one_and_are_learned_from(name: str, space: str) -> None:
    """P51, P64: ratio one only because the mask and the number before the squashing travelled with the data."""
    algorithm = make(name, space, "learning_rate=1e-9")
    metrics = algorithm.update(acted(algorithm, space), LOCAL, 0.0).metrics
    assert abs(metrics["log_rho_mean"]) < 1e-6
    assert abs(metrics["approx_kl"]) < 1e-9
    assert metrics["grad_norm"] > 0
    for update in range(3):
        algorithm = make(name, space)
        batch = acted(algorithm, space)
        before = algorithm.parameters.sha256()
        assert algorithm.update(batch, LOCAL, 0.0).applied, update
        assert algorithm.parameters.sha256() != before


@pytest.mark.parametrize("space", ENVS)
def test_the_fields_are_those_of_the_trajectory(space: str) -> None:
    algorithm = make("ppo", space)
    fields = {field.name: field for field in trajectory_spec(ENVS[space], 5, 6).fields}
    for num_envs in (0, 1, 6):
        obs = np.ones((num_envs, *ENVS[space].observation.shape), np.float32)
        stored = algorithm.act(obs, np.random.default_rng(0))["action"]
        assert stored.shape == (num_envs, *fields["action"].shape) and stored.dtype == fields["action"].dtype
        sent = algorithm.to_env(stored)
        assert sent.shape == stored.shape
        if space == "tanh_gaussian":
            assert ((sent > BOX.low) & (sent < BOX.high)).all()


@pytest.mark.parametrize("name", CONFIGS)
def test_without_the_mask_of_the_data_the_ratio_would_differ(name: str) -> None:
    algorithm = make(name, "masked", "learning_rate=1e-9")
    batch = acted(algorithm, "masked")
    batch.fields["obs"][..., -5:] = 1
    assert algorithm.update(batch, LOCAL, 0.0).metrics["log_rho_mean"] < -0.1


@pytest.mark.parametrize("space", ENVS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_result_does_not_depend_on_the_number_of_learners(name: str, space: str) -> None:
    batch = acted(make(name, space), space)
    vectors = []
    for sizes in ([6], [0, 4, 2]):
        algorithms = [make(name, space) for _ in sizes]
        train(algorithms, [split(batch, sizes)])
        vectors.append(algorithms[0].parameters.numpy.copy())
        assert len({algorithm.parameters.sha256() for algorithm in algorithms}) == 1
    np.testing.assert_allclose(*vectors, atol=1e-5)


def test_masks_are_not_normalized_and_not_counted() -> None:
    """Moments are of what the network sees; a mask of zeros and ones stays one."""
    model = ModelConfig(hidden_sizes=(8,), normalize_observations=True)
    algorithm = build(CONFIGS["ppo"], ENVS["masked"], model)
    batch = acted(algorithm, "masked")
    assert algorithm.update(batch, LOCAL, 0.0).applied
    algorithm.observe(batch, LOCAL)
    seen = batch.fields["obs"][:-1, :, :4][batch.fields["valid"]]
    moments = algorithm.normalizers.moments["obs"]
    torch.testing.assert_close(moments.mean, seen.double().mean(0))
    action = algorithm.act(batch.fields["obs"][0].numpy(), np.random.default_rng(0))["action"]
    mask = batch.fields["obs"][0, :, 4:7].bool().numpy()
    assert mask[np.arange(6), action[:, 0]].all()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_recurrent_policy_heeds_masks_too(name: str) -> None:
    model = ModelConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=4, shared_torso=False)
    algorithm = build(CONFIGS[name].with_overrides(["learning_rate=1e-9"]), ENVS["masked"], model)
    fields = dict(acted(build(CONFIGS[name], ENVS["masked"]), "masked").fields)
    state = algorithm.initial_state(6)
    assert state is not None
    fields["initial_state"] = torch.zeros(1, *state.shape)
    rng = np.random.default_rng(0)
    for t in range(5):
        chosen = algorithm.act(fields["obs"][t].numpy(), rng, state=state)
        state = chosen["state"]
        state[~fields["valid"][t].numpy()] = 0
        for field in ("action", "behavior_log_prob"):
            fields[field][t] = torch.from_numpy(chosen[field])
    given = Batch(fields=fields, column_offset=0, total_columns=6, update=0)
    assert abs(algorithm.update(given, LOCAL, 0.0).metrics["log_rho_mean"]) < 1e-6


def test_greedy_and_sampled_actions_are_allowed_ones() -> None:
    algorithm = make("ppo", "masked")
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(500, 9)).astype(np.float32)
    obs[:, -5:] = rng.random((500, 5)) < 0.4
    for greedy in (False, True):
        action = algorithm.act(obs, rng, greedy=greedy)["action"]
        for part, mask in enumerate((obs[:, 4:7], obs[:, 7:])):
            some = mask.any(axis=1)
            assert mask[some, action[some, part]].all()
            assert len(set(action[~some, part])) > 1 or greedy, "rows that nobody uses get any choice"


@pytest.mark.parametrize("name", CONFIGS)
def test_choices_that_are_never_allowed_are_never_changed(name: str) -> None:
    """Zero gradient, so Adam leaves their logits' weights where they were."""
    algorithm = make(name, "masked", "max_grad_norm=1e9")
    batch = acted(algorithm, "masked")
    batch.fields["obs"][..., -5:] = torch.tensor([1.0, 0, 1, 1, 0])
    batch.fields["action"][...] = torch.stack(
        (2 * (batch.fields["action"][..., 0] > 0), torch.zeros_like(batch.fields["action"][..., 0])), -1
    )
    before = algorithm.network.policy_head.weight.detach().clone()
    assert algorithm.update(batch, LOCAL, 0.0).applied
    changed = (algorithm.network.policy_head.weight.detach() != before).any(1)
    assert changed.tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_that_is_not_valid_may_hold_an_action_that_is_not_allowed(name: str) -> None:
    """P63: its log-probability of minus infinity reaches neither the loss nor the gradient."""
    results = []
    for choice in (0, 1):
        algorithm = make(name, "masked")
        batch = acted(algorithm, "masked")
        invalid = ~batch.fields["valid"]
        assert invalid.any()
        batch.fields["obs"][:-1][invalid] = torch.tensor([0.0] * 4 + [1, 0, 0, 1, 0])
        batch.fields["action"][invalid] = choice
        result = algorithm.update(batch, LOCAL, 0.0)
        assert result.applied
        results.append((algorithm.parameters.sha256(), result.metrics["policy_loss"]))
    assert results[0] == results[1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_damaged_log_probability_is_skipped_or_bounded_never_learned(name: str, value: float) -> None:
    """P63: one env_step of a batch."""
    algorithm = make(name, "multi_discrete")
    batch = acted(algorithm, "multi_discrete")
    batch.fields["behavior_log_prob"][2, 1] = value
    batch.fields["valid"][2, 1] = True
    before = algorithm.parameters.sha256()
    result = algorithm.update(batch, LOCAL, 0.0)
    assert torch.isfinite(algorithm.parameters.vector).all()
    if math.isnan(value):
        assert not result.applied
    assert result.applied or algorithm.parameters.sha256() == before
    batch.fields["valid"][2, 1] = False
    assert algorithm.update(batch, LOCAL, 0.0).applied, "where it is not valid, it is never read"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_ratio_is_that_of_the_two_policies(name: str) -> None:
    """P64: a two-armed bandit acted by one policy, trained by another one; both known."""
    env = EnvSpec(
        id="Bandit-v0",
        observation=ArraySpec(shape=(1,), dtype="float32"),
        action=ActionSpec(kind="discrete", size=2),
    )
    config: Any = CONFIGS[name].with_overrides(["learning_rate=1e-9"])
    algorithm = build(config, env, ModelConfig(hidden_sizes=()))
    obs = np.ones((9, 40, 1), np.float32)

    def prefer(logit: float) -> np.ndarray:
        algorithm.parameters.numpy[:] = 0
        algorithm.network.policy_head.bias.data[1] = logit
        return -np.logaddexp(0, [logit, -logit])  # log-probabilities of both arms

    behavior = prefer(0.5)
    steps = [algorithm.act(row, np.random.default_rng(0)) for row in obs[:-1]]
    target = prefer(-1.0)
    action = np.stack([step["action"] for step in steps])
    never = np.zeros(action.shape, bool)
    fields = {
        "obs": obs,
        "action": action,
        "behavior_log_prob": np.stack([step["behavior_log_prob"] for step in steps]),
        "reward": action.astype(np.float32),
        "terminated": never,
        "truncated": never.copy(),
        "valid": ~never,
    }
    metrics = algorithm.update(make_batch(fields), LOCAL, 0.0).metrics
    assert metrics["log_rho_mean"] == pytest.approx((target - behavior)[action].mean(), abs=1e-5)
    assert abs(metrics["log_rho_mean"]) > 0.1
