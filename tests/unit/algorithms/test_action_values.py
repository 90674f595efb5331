"""DQN, Ape-X and R2D2: what they choose, what they are trained towards, what they explore, what they remember."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hpcrl.algorithms import Acting, LocalReducer
from hpcrl.algorithms.dqn import DQN
from hpcrl.algorithms.metrics import Metrics
from hpcrl.algorithms.r2d2 import R2D2
from hpcrl.config import ConfigError, DQNConfig, ModelConfig, R2D2Config
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.functional.q_learning import rescale, rescale_inverse
from hpcrl.models.recurrent import Memory
from tests.unit.algorithms.replayed import LSTM, SETUPS, build_setup, replayed
from tests.unit.algorithms.support import CONTINUOUS, DISCRETE, SMALL, make_batch, random_batch
from tests.unit.functional.test_q_learning import n_step_by_loops

LOCAL = LocalReducer()
NAMES = ("apex", "dqn", "r2d2")
SEEN = ArraySpec(shape=(4,), dtype="float32")
MASKED = EnvSpec(
    id="Masked-v0",
    observation=ArraySpec(shape=(7,), dtype="float32"),
    action=ActionSpec(kind="discrete", size=3),
    masked=SEEN,
)
CONSTANT = EnvSpec(
    id="Constant-v0",
    observation=ArraySpec(shape=(1,), dtype="float32"),
    action=ActionSpec(kind="discrete", size=2),
)
GRU = ModelConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6)
R2D2_CONFIG = SETUPS["r2d2"].config


def metrics_of(algorithm: Any) -> Metrics:
    return Metrics(algorithm.metric_names, torch.device("cpu"))


def transition(**values: Any) -> dict[str, torch.Tensor]:
    """One column; everything is 0 but what is given."""
    fields = {
        "obs": torch.ones(1, 1, 1),
        "action": torch.zeros(1, 1, dtype=torch.int64),
        "reward": torch.zeros(1, 1),
        "next_obs": torch.ones(1, 1, 1),
        "discount": torch.zeros(1, 1),
        "weight": torch.ones(1, 1),
        "valid": torch.ones(1, 1, dtype=torch.bool),
    }
    return fields | values


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "env", [CONTINUOUS, replace(DISCRETE, action=ActionSpec(kind="multi_discrete", size=2, choices=(3, 2)))]
)
def test_other_actions_are_refused_by_name(name: str, env: EnvSpec) -> None:
    with pytest.raises(ConfigError, match=f"{env.id} has {env.action.kind} ones.*algorithm.name"):
        build_setup(SETUPS[name]._replace(env=env))


def test_the_dueling_form_adds_a_value_and_advantages_around_their_mean() -> None:
    algorithm = DQN(DQNConfig(dueling=True), DISCRETE, SMALL, 0)
    network, obs = algorithm.network, torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    values = network(obs)
    features = network.torso(obs)
    assert network.value_head is not None
    torch.testing.assert_close(values.mean(1), network.value_head(features).squeeze(1))
    advantages = network.action_head(features)
    torch.testing.assert_close(values - values[:, :1], advantages - advantages[:, :1])
    assert DQN(DQNConfig(dueling=False), DISCRETE, SMALL, 0).network.value_head is None


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(("discount", "reward"), [(0.9, 1.0), (0.0, -2.0)])
def test_the_target_of_a_transition(double: bool, discount: float, reward: float) -> None:
    """Q(., 0) and Q(., 1) are the biases: 3 and 1 learned, -4 and 5 in the target network."""
    config = DQNConfig(double=double, dueling=False)
    algorithm = DQN(config, CONSTANT, ModelConfig(hidden_sizes=()), 0)
    with torch.no_grad():
        algorithm.network.action_head.weight.zero_()
        algorithm.network.action_head.bias.copy_(torch.tensor([-4.0, 5.0]))
        algorithm.target.follow()
        algorithm.network.action_head.bias.copy_(torch.tensor([3.0, 1.0]))
    fields = transition(reward=torch.full((1, 1), reward), discount=torch.full((1, 1), discount))
    fields["action"][:] = 1
    metrics = algorithm.update(make_batch_of(fields), LOCAL, 0.0).metrics
    target = reward + discount * (-4.0 if double else 5.0)
    assert metrics["q_target"] == pytest.approx(target)
    assert metrics["q_value"] == pytest.approx(1.0)
    assert metrics["td_error"] == pytest.approx(abs(target - 1))
    error = abs(target - 1)
    assert metrics["value_loss"] == pytest.approx(error - 0.5 if error > 1 else error**2 / 2)


def make_batch_of(fields: dict[str, torch.Tensor], update: int = 0) -> Any:
    return make_batch({name: values.numpy() for name, values in fields.items()}, update)


@pytest.mark.parametrize("steps", [1, 3])
def test_time_limit_chain(steps: int) -> None:
    """Reward 1 for ever; what a time limit cuts still counts the value after it: 1 / (1 - gamma) = 5."""
    config = DQNConfig(
        gamma=0.8, learning_rate=0.05, target_update_updates=5, anneal_learning_rate=True, max_grad_norm=1e3
    )
    algorithm = DQN(config, CONSTANT, ModelConfig(hidden_sizes=()), 0)
    reward = sum(0.8**k for k in range(steps))
    fields = transition(reward=torch.full((1, 1), reward), discount=torch.full((1, 1), 0.8**steps))
    for update in range(400):
        fields["action"][:] = update % 2
        algorithm.update(make_batch_of(fields, update), LOCAL, update / 400)
    np.testing.assert_allclose(algorithm.network(torch.ones(1, 1)).detach(), [[5.0, 5.0]], atol=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_masked_actions_are_never_chosen(name: str) -> None:
    algorithm = build_setup(SETUPS[name]._replace(env=MASKED))
    obs = np.random.default_rng(0).normal(size=(300, 7)).astype(np.float32)
    obs[:, 4:] = np.random.default_rng(1).integers(0, 2, (300, 3))
    obs[np.arange(300), 4 + np.arange(300) % 3] = 1
    for greedy, epsilon in ((True, 1.0), (False, 0.0), (False, 1.0)):
        acting = Acting(algorithm, 300)
        given = {} if acting.state is None else {"state": acting.state}
        exploration = np.full(300, epsilon, np.float32)
        rng = np.random.default_rng(2)
        action = algorithm.act(obs, rng, greedy=greedy, exploration=exploration, **given)["action"]
        assert action.dtype == np.int64
        assert (obs[np.arange(300), 4 + action] == 1).all()
        assert len(set(action)) == 3


@pytest.mark.parametrize("double", [True, False])
def test_masked_actions_are_not_maximized_over(double: bool) -> None:
    config = DQNConfig(double=double, dueling=False)
    algorithm = DQN(config, MASKED, ModelConfig(hidden_sizes=()), 0)
    with torch.no_grad():
        algorithm.network.action_head.weight.zero_()
        algorithm.network.action_head.bias.copy_(torch.tensor([1.0, 9.0, 2.0]))
        algorithm.target.follow()
    obs = torch.zeros(1, 3, 7)
    obs[..., 4:] = torch.tensor([[1.0, 0, 1], [0, 1, 0], [0, 0, 0]])  # the last allows nothing: an end
    fields = transition(obs=obs, next_obs=obs.clone(), discount=torch.tensor([[1.0, 1, 0]]))
    fields["obs"][0, :, 4:] = 1
    fields |= {
        name: fields[name].expand(1, 3).contiguous() for name in ("action", "reward", "weight", "valid")
    }
    metrics = algorithm.update(make_batch_of(fields), LOCAL, 0.0).metrics
    assert metrics["q_target"] == pytest.approx((2 + 9 + 0) / 3)


def test_dqn_explores_less_and_less_by_the_env_steps_of_the_run() -> None:
    algorithm = DQN(DQNConfig(epsilon_end=0.1, epsilon_env_steps=1000), DISCRETE, SMALL, 0)
    envs = np.arange(4, 6)
    found = [algorithm.exploration(envs, 8, steps) for steps in (0, 500, 1000, 10**9)]
    np.testing.assert_allclose(found, np.array([[1.0], [0.55], [0.1], [0.1]]).repeat(2, 1), rtol=1e-6)
    obs = np.zeros((2000, 4), np.float32)
    best = algorithm.act(obs, np.random.default_rng(0), greedy=True, exploration=np.ones(2000, np.float32))
    assert len(set(best["action"])) == 1
    some = algorithm.act(obs, np.random.default_rng(0), exploration=np.full(2000, 0.3, np.float32))["action"]
    assert (some != best["action"]).mean() == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("name", ["apex", "r2d2"])
def test_the_ladder_is_over_the_environments_of_the_run(name: str) -> None:
    algorithm = build_setup(SETUPS[name])
    found = algorithm.exploration(np.array([0, 3, 7]), 8, 10**6)
    np.testing.assert_allclose(found, 0.4 ** (1 + 7 * np.array([0, 3, 7]) / 7), rtol=1e-6)


@pytest.mark.parametrize("name", ["apex", "r2d2"])
@pytest.mark.parametrize("epsilon", [None, 0.01])
def test_first_priorities_are_errors_of_the_parameters_that_act(name: str, epsilon: float | None) -> None:
    """Against plain loops: n steps, fewer at the end of an episode and of the trajectory."""
    setup = SETUPS[name]
    config = setup.config.with_overrides(["n_step=3", "reward_clip=1.0", "reward_scale=0.5", "gamma=0.9"])
    if name == "r2d2":
        config = config.model_copy(update={"rescale_epsilon": epsilon})
    elif epsilon:
        return
    algorithm = build_setup(setup._replace(config=config))
    algorithm.target.vector += 1.0  # actors do not have it
    size = algorithm.network.state_size
    drawn = random_batch(DISCRETE, 9, 5, seed=2, state_size=size).fields
    fields = {key: values.numpy() for key, values in drawn.items()}
    found = algorithm.first_priorities(fields)
    assert (found.dtype, found.shape) == (np.float32, (9, 5))
    state = Acting(algorithm, 5, fields.get("initial_state", [None])[0])
    values = []
    for t, obs in enumerate(fields["obs"]):
        given = None if state.state is None else torch.from_numpy(state.state)
        q, after = algorithm.network.step(torch.from_numpy(obs), given)
        values.append(q.detach().numpy())
        if after is not None and t < 9:
            state.state = after.detach().numpy().copy()
            state.restart(~fields["valid"][t])
    best = torch.from_numpy(np.max(values[1:], axis=2))
    reward = np.clip(fields["reward"], -1, 1) * 0.5
    next_value = best if epsilon is None else rescale_inverse(best, epsilon)
    ends = fields["terminated"], fields["truncated"]
    target = torch.from_numpy(n_step_by_loops(reward, next_value.numpy(), *ends, 3))
    target = target if epsilon is None else rescale(target, epsilon)
    value = np.take_along_axis(np.array(values[:-1]), fields["action"][..., None], 2)[..., 0]
    expected = np.where(fields["valid"], np.abs(target.numpy() - value), 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("model", [GRU, LSTM])
def test_burning_in_ends_where_the_unrolled_sequence_is(model: ModelConfig) -> None:
    """After the prefix, with forgetting at every first observation of an episode, both networks."""
    algorithm = R2D2(R2D2_CONFIG.with_overrides(["burn_in_steps=2"]), DISCRETE, model, 0)
    network = algorithm.network
    obs = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(1))
    state = torch.randn(3, network.state_size, generator=torch.Generator().manual_seed(2))
    begins = torch.zeros(5, 3, dtype=torch.bool)
    begins[0, 0] = begins[2, 1] = begins[3, 2] = True
    whole = network(obs.flatten(0, 1), Memory(state, begins)).view(4, 3, -1)
    for length in range(4):
        after = network.after(obs[:length].flatten(0, 1), Memory(state, begins))
        rest = network(obs[length:].flatten(0, 1), Memory(after, begins[length:])).view(4 - length, 3, -1)
        torch.testing.assert_close(rest, whole[length:])
    nothing = network.after(torch.zeros(0, 4), Memory(torch.zeros(0, network.state_size), begins[:, :0]))
    assert nothing.shape == (0, network.state_size)


def test_rewards_of_sequences_are_trained_on_as_they_come() -> None:
    """The replay memory has clipped and scaled them."""
    config = R2D2_CONFIG.with_overrides(["reward_clip=0.1", "reward_scale=0.5"])
    plain, scaled = (R2D2(one, DISCRETE, LSTM, 0) for one in (R2D2_CONFIG, config))
    fields = dict(replayed(plain, DISCRETE, 4, 0).fields)
    assert torch.equal(loss_of(plain, fields).total, loss_of(scaled, fields).total)


def loss_of(algorithm: R2D2, fields: dict[str, torch.Tensor]) -> Any:
    return algorithm.loss(fields, metrics_of(algorithm))


def test_burn_in_trains_nothing_and_needs_both_networks() -> None:
    """Rewards and actions of the burn-in do not matter, what is seen there does; no gradient goes back into it."""
    algorithm = build_setup(SETUPS["r2d2"])
    assert isinstance(algorithm, R2D2)
    batch = replayed(algorithm, DISCRETE, 5, 0)
    batch.fields["valid"][:] = True
    first = loss_of(algorithm, dict(batch.fields))
    other = {name: values.clone() for name, values in batch.fields.items()}
    other["reward"][:2] += 5
    other["action"][:2] = (other["action"][:2] + 1) % 3
    assert torch.equal(loss_of(algorithm, other).total, first.total)
    assert first.samples == 4 * 5
    other["obs"][0] += 1
    assert not torch.allclose(loss_of(algorithm, other).total, first.total)
    fields = dict(batch.fields)
    obs, state = fields["obs"].clone().requires_grad_(), fields["initial_state"].clone().requires_grad_()
    loss_of(algorithm, fields | {"obs": obs, "initial_state": state}).total.backward()
    assert obs.grad is not None and state.grad is None
    assert not obs.grad[:2].any()
    assert obs.grad[2:6].any()
    algorithm.target.vector[:] = torch.roll(algorithm.target.vector, 1)  # its own state is burned in, too
    states = []
    after = algorithm.network.after
    algorithm.network.after = lambda *given: states.append(after(*given)) or states[-1]  # type: ignore[assignment]
    loss_of(algorithm, fields)
    assert len(states) == 2
    assert not torch.allclose(states[0], states[1])


def test_what_an_episode_forgot_does_not_reach_the_next_one_of_a_sequence() -> None:
    algorithm = build_setup(SETUPS["r2d2"])
    assert isinstance(algorithm, R2D2)
    batch = replayed(algorithm, DISCRETE, 5, 0)
    fields = {name: values.clone() for name, values in batch.fields.items()}
    for name, value in (("valid", True), ("terminated", False), ("truncated", False)):
        fields[name][:] = value
    fields["terminated"][0] = True
    fields["valid"][1] = False
    before = loss_of(algorithm, fields)
    for name, stop in (("initial_state", 1), ("obs", 2)):
        fields[name][:stop] += 3
    after = loss_of(algorithm, fields)
    assert torch.equal(after.total, before.total)
    assert torch.equal(after.priorities, before.priorities)


def test_acting_and_learning_remember_the_same() -> None:
    """Actions chosen at random, too: the values that the learner computes are those that the actor saw."""
    algorithm = R2D2(R2D2Config(), DISCRETE, LSTM, 0)
    drawn = random_batch(DISCRETE, 12, 6, seed=4, state_size=algorithm.network.state_size).fields
    acting, seen = Acting(algorithm, 6, drawn["initial_state"][0].numpy().copy()), []
    for t in range(12):
        assert acting.state is not None
        obs, state = drawn["obs"][t], torch.from_numpy(acting.state.copy())
        seen.append(algorithm.network.step(obs, state)[0].detach())
        rng, explore = np.random.default_rng(t), np.ones(6, np.float32)
        chosen = algorithm.act(obs.numpy(), rng, state=acting.state, exploration=explore)
        acting.state = chosen["state"]
        acting.restart(~drawn["valid"][t].numpy())
    values = algorithm.trajectory_values(dict(drawn))
    torch.testing.assert_close(values[:-1].detach(), torch.stack(seen))
    with pytest.raises(ValueError, match="initial_state"):
        algorithm.act(drawn["obs"][0].numpy(), np.random.default_rng(0))


def test_the_priority_of_a_sequence_mixes_largest_and_mean_of_what_is_trained_on() -> None:
    algorithm = build_setup(SETUPS["r2d2"])
    assert isinstance(algorithm, R2D2)
    batch = replayed(algorithm, DISCRETE, 6, 3)
    fields = dict(batch.fields)
    found = {}
    for eta in (0.0, 0.9, 1.0):
        algorithm.config = algorithm.config.model_copy(update={"priority_eta": eta})
        found[eta] = loss_of(algorithm, fields).priorities
    torch.testing.assert_close(found[0.9], 0.9 * found[1.0] + 0.1 * found[0.0])
    assert (found[1.0] > found[0.0]).any()
    fields["valid"] = fields["valid"].clone()
    fields["valid"][2:, 1] = False
    assert loss_of(algorithm, fields).priorities[1] == 0


def test_a_sequence_that_is_not_rescaled_is_trained_as_transitions_are() -> None:
    """Without burn-in, memory's state or ends: the same targets as Ape-X has."""
    config = R2D2_CONFIG.with_overrides(["burn_in_steps=0", "trained_steps=3", "n_step=1"])
    algorithm = R2D2(config.model_copy(update={"rescale_epsilon": None}), DISCRETE, LSTM, 0)
    batch = replayed(algorithm, DISCRETE, 4, 1)
    fields = dict(batch.fields)
    values = algorithm.trajectory_values(fields).detach()
    target = algorithm.sequence_targets(fields, values, values)
    bootstrap = torch.where(fields["terminated"], 0.0, 0.997 * values[1:].amax(-1))
    torch.testing.assert_close(target, fields["reward"] + bootstrap)
    metrics = metrics_of(algorithm)
    loss = algorithm.loss(fields, metrics)
    value = values[:-1].gather(-1, fields["action"].unsqueeze(-1)).squeeze(-1)
    half_squares = 0.5 * (target - value).square() * fields["weight"] * fields["valid"]
    torch.testing.assert_close(loss.total.detach(), half_squares.sum())
