"""Recurrent policies: acting, whole columns as minibatches, results that do not depend on the learners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hpcrl.algorithms import Acting, Batch, LocalReducer, make_algorithm
from hpcrl.algorithms.actor_critic import ActorCriticAlgorithm
from hpcrl.algorithms.one_network import rows
from hpcrl.algorithms.ppo import PPO
from hpcrl.config import ConfigError, ModelConfig, PPOConfig, RunConfig, SurrogateConfig
from hpcrl.data.specs import trajectory_spec
from tests.unit.algorithms.support import (
    CONFIGS,
    CONTINUOUS,
    DISCRETE,
    build,
    random_batch,
    split,
    train,
    without_noise,
)

GRU = ModelConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6)
LSTM = ModelConfig(hidden_sizes=(8,), recurrent="lstm", recurrent_size=5, shared_torso=False)
UPDATES = 3


def batch_for(
    algorithm: ActorCriticAlgorithm, unroll_length: int, columns: int, seed: int, update: int = 0
) -> Batch:
    return random_batch(DISCRETE, unroll_length, columns, seed, update, algorithm.network.state_size)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("model", "sizes"), [(GRU, (4, 3)), (LSTM, (7, 0)), (LSTM, (1, 0, 6))])
def test_rank_invariance(name: str, model: ModelConfig, sizes: tuple[int, ...]) -> None:
    alone = build(CONFIGS[name], model=model)
    batches = [batch_for(alone, 5, 7, seed=update, update=update) for update in range(UPDATES)]
    start = alone.parameters.numpy.copy()
    (expected,) = train([alone], [[batch] for batch in batches])
    learners = [build(CONFIGS[name], model=model) for _ in sizes]
    results = train(learners, [split(batch, sizes) for batch in batches])
    assert np.abs(alone.parameters.numpy - start).max() > 3e-3, "nothing was learned"
    for learner, result in zip(learners, results, strict=True):
        np.testing.assert_allclose(learner.parameters.numpy, alone.parameters.numpy, atol=1e-5)
        assert learner.parameters.sha256() == learners[0].parameters.sha256()
        for own, reference in zip(result, expected, strict=True):
            assert without_noise(own) == pytest.approx(
                without_noise(reference), rel=1e-3, abs=1e-3, nan_ok=True
            )


@pytest.mark.parametrize("name", CONFIGS)
def test_large_batches_in_parts_give_the_same(name: str) -> None:
    whole, parts = (build(CONFIGS[name], model=LSTM) for _ in range(2))
    parts.chunk_rows = 13  # two columns
    batch = batch_for(whole, 5, 7, seed=3)
    first, second = (algorithm.update(batch, LocalReducer(), 0.0) for algorithm in (whole, parts))
    np.testing.assert_allclose(parts.parameters.numpy, whole.parameters.numpy, atol=1e-6)
    assert without_noise(first) == pytest.approx(without_noise(second), abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_came_before_an_episode_does_not_matter_to_it(name: str) -> None:
    """All episodes begin at the second env_step: of the first only the metrics may depend on the state before."""
    algorithm = build(CONFIGS[name], model=GRU)
    batch = batch_for(algorithm, 6, 4, seed=1)
    batch.fields["valid"][0] = False
    for flag in ("terminated", "truncated"):
        batch.fields[flag][0] = False
    other = batch.fields | {"initial_state": torch.full_like(batch.fields["initial_state"], 1e6)}
    algorithm.update(batch, LocalReducer(), 0.0)
    again = build(CONFIGS[name], model=GRU)
    again.update(
        Batch(fields=other, column_offset=0, total_columns=batch.total_columns, update=0), LocalReducer(), 0.0
    )
    assert algorithm.parameters.sha256() == again.parameters.sha256()


@pytest.mark.parametrize("name", ["ppo", "decoupled_ppo"])
def test_minibatches_are_whole_columns_of_all_learners(name: str) -> None:
    learners = [build(CONFIGS[name], model=GRU) for _ in range(3)]
    sizes, length = (4, 0, 3), 5
    shares = split(batch_for(learners[0], length, 7, seed=0, update=2), sizes)
    per_learner = []
    for learner, share in zip(learners, shares, strict=True):
        assert isinstance(learner, PPO)
        per_learner.append([part.numpy() for part in learner._minibatches(share)])
    (alone,) = split(batch_for(learners[0], length, 7, seed=0, update=2), (7,))
    assert isinstance(learners[0], PPO)
    minibatches = [part.numpy() for part in learners[0]._minibatches(alone)]
    assert len(minibatches) == 2 * 3
    drawn = []
    for number, minibatch in enumerate(minibatches):
        chosen = minibatch.reshape(length, -1)
        assert (np.diff(chosen, axis=0) == 7).all() and (chosen[0] < 7).all(), "time-major rows of columns"
        drawn.append(chosen[0].tolist())
        own = [
            share.column_offset + parts[number].reshape(length, -1)[0]
            for share, parts in zip(shares, per_learner, strict=True)
            if share.fields["valid"].shape[1]
        ]
        assert sorted(np.concatenate(own).tolist()) == sorted(drawn[-1])
    assert [len(columns) for columns in drawn] == [3, 2, 2] * 2
    first, second = ([column for part in half for column in part] for half in (drawn[:3], drawn[3:]))
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second, "each epoch draws anew"


def test_a_sample_of_columns_is_evaluated_as_in_the_whole() -> None:
    algorithm = build(CONFIGS["ppo"], model=LSTM)
    assert isinstance(algorithm, PPO)
    batch = batch_for(algorithm, 5, 7, seed=4)
    samples = algorithm._samples(batch, LocalReducer())
    with torch.no_grad():
        whole = algorithm.evaluate(samples.obs, samples.action, samples.memory)
        index = list(algorithm._minibatches(batch))[1]
        taken = samples.take(index)
        part = algorithm.evaluate(taken.obs, taken.action, taken.memory)
        flat = rows(batch.fields["obs"])
        longer = algorithm.evaluate(flat, samples.action, algorithm.memory(batch.fields))
    for mine, all_ in zip(part, whole, strict=True):
        torch.testing.assert_close(mine, all_[index])
    torch.testing.assert_close(longer[2][: len(samples.table)], samples.numbers.value)


@pytest.mark.parametrize("env", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("model", [GRU, LSTM])
def test_act_gives_the_fields_of_the_trajectory_and_the_next_state(env: Any, model: ModelConfig) -> None:
    algorithm = build(CONFIGS["impala"], env, model)
    spec = trajectory_spec(env, 3, 4, algorithm.stored_fields)
    state = algorithm.initial_state(4)
    assert state is not None and state.dtype == np.float32 and not state.any()
    (field,) = [field for field in spec.fields if field.start_only]
    assert (field.name, field.shape, field.dtype) == ("initial_state", state.shape[1:], "float32")
    obs = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    acted = algorithm.act(obs, np.random.default_rng(1), state=state)
    assert set(acted) == {"action", "behavior_log_prob", "state"}
    assert acted["state"].shape == state.shape and acted["state"].all() and not state.any()
    with pytest.raises(ValueError, match="needs a state"):
        algorithm.act(obs, np.random.default_rng(1))


def test_acting_remembers_and_forgets_by_row() -> None:
    algorithm = build(CONFIGS["impala"], model=GRU)
    obs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    acting, rng = Acting(algorithm, 3), np.random.default_rng(1)
    acting.act(obs, rng)
    once = acting.state
    acting.act(obs, rng)
    assert once is not None and acting.state is not None
    assert not np.isclose(acting.state, once).all(1).any()
    saved = acting.state.copy()
    acting.restart(np.array([False, True, False]))
    assert (acting.state.any(1) == [True, False, True]).all()
    assert np.array_equal(acting.state[::2], saved[::2])
    acting.act(obs, rng)
    np.testing.assert_allclose(acting.state[1], once[1], atol=1e-6)
    continued = Acting(algorithm, 3, saved)
    assert continued.state is not saved and np.array_equal(continued.state, saved)
    assert not Acting(algorithm, 3).state.any(), "what an episode begins with was written over"


def test_algorithms_that_know_of_no_state_are_given_none() -> None:
    class Old:
        def initial_state(self, num_envs: int) -> None:
            return None

        def act(self, obs: Any, rng: Any, *, greedy: bool = False) -> dict[str, Any]:
            return {"action": obs, "greedy": greedy}

    acting = Acting(Old(), 2)  # type: ignore[arg-type]
    acting.restart(np.ones(2, bool))
    assert acting.act(np.arange(2), np.random.default_rng(0), greedy=True)["greedy"]
    assert acting.state is None


def run_config(**sections: Any) -> RunConfig:
    values = {"name": "test", "scheme": "synchronous", "env": {"id": "x", "num_envs": 6}}
    return RunConfig.parse(values | {"model": {"recurrent": "gru"}, "ranks": {"workers": 2}} | sections)


class Forgetful(PPO):
    """An algorithm that makes nothing of model.recurrent."""

    Config = SurrogateConfig

    def initial_state(self, num_envs: int) -> None:
        return None


def test_an_algorithm_without_a_state_is_refused() -> None:
    config = run_config(algorithm={"name": f"{__name__}:Forgetful"})
    with pytest.raises(ConfigError, match=r"model\.recurrent=gru is not there with algorithm\.name=.*Forget"):
        make_algorithm(config, DISCRETE)
    assert make_algorithm(run_config(algorithm={"name": "ppo"}), DISCRETE).initial_state(2) is not None


def test_more_minibatches_than_columns_are_refused() -> None:
    run_config(algorithm={"name": "ppo", "num_minibatches": 6})
    run_config(algorithm={"name": "ppo", "num_minibatches": 7}, model={})
    with pytest.raises(
        ConfigError, match=r"num_minibatches=7 is more than the 6 columns.*raise env\.num_envs"
    ):
        run_config(algorithm={"name": "ppo", "num_minibatches": 7})
    with pytest.raises(ConfigError, match=r"num_minibatches=7 is more than the 6 columns"):
        run_config(
            algorithm={"name": "ppo", "num_minibatches": 7, "batch_trajectories": 2},
            scheme="pipeline",
            ranks={"actors": 2},
        )
    algorithm = build(PPOConfig(num_minibatches=4), model=GRU)
    with pytest.raises(ValueError, match=r"num_minibatches=4 is more than the 3 columns"):
        algorithm.update(batch_for(algorithm, 5, 3, seed=0), LocalReducer(), 0.0)
