"""What is learned, saved and restored; and the optimizer behind it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcrl.algorithms import LocalReducer
from hpcrl.algorithms.gradient import FlatAdam
from hpcrl.data.specs import EnvSpec
from hpcrl.models.flat import FlatParameters
from tests.unit.algorithms.support import (
    CONFIGS,
    CONTINUOUS,
    DISCRETE,
    build,
    random_batch,
)

LOCAL = LocalReducer()


@pytest.mark.parametrize("env", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("name", CONFIGS)
def test_state_round_trip_continues_bit_for_bit(name: str, env: EnvSpec) -> None:
    batches = [random_batch(env, 4, 5, seed=seed, update=seed) for seed in range(4)]
    first = build(CONFIGS[name], env, seed=7)
    empty = first.state()
    for batch in batches[:2]:
        first.update(batch, LOCAL, 0.0)
    state = first.state()
    second = build(CONFIGS[name], env, seed=7)
    second.parameters.numpy[:] = 0
    second.load_state(state)
    for batch in batches[2:]:
        results = [algorithm.update(batch, LOCAL, 0.0) for algorithm in (first, second)]
        np.testing.assert_equal(results[0].metrics, results[1].metrics)
    assert first.parameters.sha256() == second.parameters.sha256()
    assert not np.array_equal(state["parameters"], first.parameters.numpy), "state must be a copy"
    first.load_state(empty)
    assert int(first.state()["adam_steps"]) == 0


@pytest.mark.parametrize(
    "entry", ["parameters", "adam_exp_avg", "adam_exp_avg_sq", "adam_steps", "target_parameters"]
)
def test_a_wrong_state_is_refused_by_name_and_changes_nothing(entry: str) -> None:
    algorithm = build(CONFIGS["impact"])
    before = algorithm.parameters.sha256()
    state = {name: values + np.ones_like(values) for name, values in algorithm.state().items()}
    with pytest.raises(ValueError, match=entry):
        algorithm.load_state({name: values for name, values in state.items() if name != entry})
    with pytest.raises(ValueError, match=entry):
        algorithm.load_state(state | {entry: np.zeros(3, np.float32)})
    assert algorithm.parameters.sha256() == before


def test_adam_is_that_of_torch() -> None:
    linear, reference = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    reference.load_state_dict(linear.state_dict())
    parameters = FlatParameters(linear)
    adam = FlatAdam(parameters, 1e-5)
    expected = torch.optim.Adam(reference.parameters(), eps=1e-5)
    rng = torch.Generator().manual_seed(0)
    for step in range(30):
        rate = 1e-2 / (1 + step)
        obs = torch.randn(4, 5, generator=rng)
        parameters.zero_gradient()
        linear(obs).square().sum().backward()
        adam.step(rate, parameters.gradient.numpy() * 4, 0.25)
        expected.zero_grad()
        reference(obs).square().sum().backward()
        expected.param_groups[0]["lr"] = rate
        expected.step()
    flat = torch.cat([p.detach().reshape(-1) for p in reference.parameters()])
    torch.testing.assert_close(parameters.vector, flat, atol=1e-6, rtol=1e-5)
