"""No tensor of an update is left on another device than the batch; the meta device, which has no values, tells."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcrl.algorithms import Algorithm, Batch
from hpcrl.algorithms.gradient import FlatAdam
from hpcrl.algorithms.target import Target
from hpcrl.config import SurrogateConfig
from hpcrl.models.critics import PolicyAndCritics
from hpcrl.models.flat import FlatParameters
from tests.unit.algorithms.replayed import SETUPS, build_setup, replayed
from tests.unit.algorithms.support import CONFIGS, CONTINUOUS, DISCRETE, SMALL, build, random_batch

META = torch.device("meta")


class MetaReducer:
    """One learner, whose gradient lies on the meta device."""

    def __init__(self) -> None:
        self._memory = torch.zeros(0, device=META)
        self.buckets = (range(0),)
        self.extra_sums = np.array([10.0, 1.0, 0.0, 0.0, 0.0])

    def open_gradient(self, size: int, exact: Sequence[range] = ()) -> Tensor:
        self._memory = self._memory if self._memory.numel() == size else torch.zeros(size, device=META)
        return self._memory

    def start(self, bucket: int) -> None: ...

    def poll(self) -> None: ...

    def finish(self, extras: Sequence[float] = ()) -> Tensor:
        return self._memory

    def square_sum(self) -> float:
        return 1.0

    def sum_(self, vector: Tensor) -> None:
        assert vector.device == META


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without values say 1 when they are asked."""
    monkeypatch.setattr(Tensor, "item", lambda self: 1.0)
    monkeypatch.setattr(Tensor, "tolist", lambda self: [1.0] * self.numel())
    monkeypatch.setattr(Tensor, "__int__", lambda self: 1)
    monkeypatch.setattr(Tensor, "__float__", lambda self: 1.0)


@pytest.mark.parametrize("env", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_an_update_stays_where_the_batch_is(
    name: str, normalize: bool, env: object, values: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Advantages are not normalized: picking the valid ones needs their values."""
    config = CONFIGS[name].model_copy(update={"normalize_returns": normalize})
    if isinstance(config, SurrogateConfig):
        config = config.model_copy(update={"normalize_advantages": False})
    algorithm = build(config, env, SMALL.model_copy(update={"normalize_observations": normalize}))
    monkeypatch.setattr(algorithm, "state", dict)  # has no values to copy
    with META:
        algorithm.network.to(META)
        algorithm.parameters = FlatParameters(algorithm.network)
        algorithm.optimizer = FlatAdam(algorithm.parameters, config.adam_epsilon)
    batch = random_batch(env, 5, 4, seed=0)
    there = {field: tensor.to(META) for field, tensor in batch.fields.items()}
    moved = Batch(fields=there, column_offset=0, total_columns=4, update=0)
    for _ in range(2):
        assert algorithm.update(moved, MetaReducer(), 0.5).applied
    assert algorithm.optimizer.steps > 0
    assert {vector.device for vector in algorithm.vectors()} == {META}


@pytest.mark.parametrize("name", ["apex", "ddpg", "dqn", "sac", "td3"])
def test_an_update_from_replay_stays_where_the_batch_is(
    name: str, values: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the priorities come back."""
    algorithm = build_setup(SETUPS[name])
    network = algorithm.network
    parts = network.parts() if isinstance(network, PolicyAndCritics) else None
    algorithm._on_device = True  # so random numbers come there, too
    with META:
        algorithm.network.to(META)
        algorithm.parameters = FlatParameters(algorithm.network)
        algorithm.optimizer = FlatAdam(algorithm.parameters, 1e-5, parts)
        algorithm.target = Target(algorithm.parameters)
    monkeypatch.setattr(Tensor, "cpu", lambda self: torch.ones(self.shape, device="cpu"))
    batch = replayed(algorithm, SETUPS[name].env, 4, seed=0)
    there = {field: tensor.to(META) for field, tensor in batch.fields.items()}
    result = algorithm.update(replace(batch, fields=there), MetaReducer(), 0.5)
    assert result.priorities is not None and result.priorities.tolist() == [1.0] * 4
    assert algorithm.target.vector.device == META


def test_moving_takes_the_target_network_along(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = build_setup(SETUPS["dqn"])
    moved: list[torch.device] = []
    monkeypatch.setattr(algorithm.optimizer, "move", moved.append)  # of the parameters, which cannot go there
    algorithm.move(META)
    assert moved == [META]
    assert algorithm.target.vector.device == META


def test_moving_keeps_what_was_learned_and_gives_the_gradient_memory_of_its_own() -> None:
    algorithm = build(CONFIGS["impala"])
    algorithm.parameters.gradient.fill_(1.0)
    algorithm.optimizer.step(0.1, torch.ones(algorithm.parameters.size), 1.0)
    before, gradient = copy.deepcopy(algorithm.state()), algorithm.parameters.gradient
    algorithm.move(torch.device("cpu"))
    assert all(np.array_equal(before[name], array) for name, array in algorithm.state().items())
    assert algorithm.parameters.gradient.data_ptr() != gradient.data_ptr()
    assert not algorithm.parameters.gradient.any()
    algorithm.optimizer.step(0.1, torch.ones(algorithm.parameters.size), 1.0)
    assert not np.array_equal(before["parameters"], algorithm.parameters.numpy)


def test_a_tensor_and_an_array_are_stepped_along_alike() -> None:
    first, second = build(CONFIGS["impala"]), build(CONFIGS["impala"])
    gradient = np.random.default_rng(0).normal(size=first.parameters.size).astype(np.float32)
    for scale in (0.1, 1 / 3):
        first.optimizer.step(1e-2, gradient, scale)
        second.optimizer.step(1e-2, torch.from_numpy(gradient), scale)
    assert first.parameters.sha256() == second.parameters.sha256()


def test_an_algorithm_that_says_nothing_stays_on_the_cpu() -> None:
    algorithm = build(CONFIGS["impala"])
    Algorithm.move(algorithm, torch.device("cpu"))
    with pytest.raises(NotImplementedError, match="Impala does not run on cuda:1"):
        Algorithm.move(algorithm, torch.device("cuda", 1))
    assert Algorithm.devices == ("cpu",)
