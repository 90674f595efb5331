"""Recurrent cells: torch's own as the reference, gradients by finite differences, forgetting at episode borders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpcrl.config import ModelConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.models.flat import FlatParameters
from hpcrl.models.networks import ActorCritic
from hpcrl.models.recurrent import CELLS, KEEP_BIAS, Memory, Recurrent

WIDTH, SIZE, LENGTH, NUM = 3, 4, 6, 5
KINDS = sorted(CELLS)
ENV = EnvSpec(
    id="Test-v0",
    observation=ArraySpec(shape=(WIDTH,), dtype="float32"),
    action=ActionSpec(kind="discrete", size=3),
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(kind: str, dtype: torch.dtype = torch.float64) -> Recurrent:
    cell = CELLS[kind](WIDTH, SIZE, generator())
    with torch.no_grad():
        for bias in (cell.bias_ih, cell.bias_hh):
            bias.add_(torch.randn(bias.shape, generator=generator(3)))
    return cell.to(dtype)


def sequences(cell: Recurrent, begins: Tensor | None = None) -> tuple[Tensor, Memory]:
    """Features [L * N, width] and a memory, both random."""
    features = torch.randn(LENGTH * NUM, WIDTH, generator=generator(1), dtype=torch.float64)
    state = torch.randn(NUM, cell.state_size, generator=generator(2), dtype=torch.float64)
    return features, Memory(state, torch.zeros(LENGTH, NUM, dtype=torch.bool) if begins is None else begins)


def torchs(cell: Recurrent) -> nn.GRU | nn.LSTM:
    reference = (nn.GRU if cell.num_parts == 1 else nn.LSTM)(WIDTH, SIZE).double()
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(reference, f"{name}_l0").copy_(getattr(cell, name))
    return reference


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_torch(kind: str) -> None:
    cell = make(kind)
    features, memory = sequences(cell)
    reference = torchs(cell)
    parts = [part.unsqueeze(0).contiguous() for part in memory.state.chunk(cell.num_parts, 1)]
    expected, _ = reference(features.view(LENGTH, NUM, WIDTH), parts[0] if len(parts) == 1 else tuple(parts))
    output = cell.unroll(features, memory)
    torch.testing.assert_close(output, expected.flatten(0, 1))
    weights = torch.randn(output.shape, generator=generator(4), dtype=torch.float64)
    (output * weights).sum().backward()
    (expected.flatten(0, 1) * weights).sum().backward()
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        torch.testing.assert_close(getattr(cell, name).grad, getattr(reference, f"{name}_l0").grad)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_finite_differences_across_resets(kind: str) -> None:
    cell = make(kind)
    begins = torch.rand(LENGTH, NUM, generator=generator(5)) < 0.3
    features, memory = sequences(cell, begins)
    values = [*cell.parameters()]

    def unroll(*_: Tensor) -> Tensor:
        return cell.unroll(features, memory)

    features.requires_grad_()
    memory.state.requires_grad_()
    assert torch.autograd.gradcheck(unroll, (features, memory.state, *values), fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_begins_with_nothing_remembered(kind: str) -> None:
    """In the row alone; what comes before may even be no number.

    To rounding: an episode that begins is a row more in the products.
    """
    cell = make(kind)
    begins = torch.zeros(LENGTH, NUM, dtype=torch.bool)
    begins[2, 1] = begins[0, 3] = True
    features, memory = sequences(cell, begins)
    output = cell.unroll(features, memory).view(LENGTH, NUM, SIZE)
    untouched = cell.unroll(features, Memory(memory.state, torch.zeros_like(begins))).view(LENGTH, NUM, SIZE)
    others = [0, 2, 4]
    torch.testing.assert_close(output[:, others], untouched[:, others])
    torch.testing.assert_close(output[:2, 1], untouched[:2, 1])
    for first, row in ((2, 1), (0, 3)):
        fresh = Memory(torch.zeros(1, cell.state_size, dtype=torch.float64), begins[first:, :1])
        alone = cell.unroll(features.view(LENGTH, NUM, WIDTH)[first:, row], fresh)
        torch.testing.assert_close(output[first:, row], alone)
        assert not torch.allclose(output[first, row], untouched[first, row])
    memory.state[3] = torch.nan
    assert torch.equal(cell.unroll(features, memory).view(LENGTH, NUM, SIZE)[:, 3], output[:, 3])


@pytest.mark.parametrize("kind", KINDS)
def test_steps_one_by_one_are_the_unroll(kind: str) -> None:
    cell = make(kind)
    features, memory = sequences(cell)
    output = cell.unroll(features, memory).view(LENGTH, NUM, SIZE)
    state = memory.state
    for now, expected in zip(features.view(LENGTH, NUM, WIDTH), output, strict=True):
        state = cell.step(now, state)
        assert state.shape == memory.state.shape
        torch.testing.assert_close(state[:, :SIZE], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_initial_scales(kind: str) -> None:
    cell = CELLS[kind](WIDTH, SIZE, generator())
    for weights in (cell.weight_ih, cell.weight_hh):
        for gate in weights.chunk(cell.num_gates):
            torch.testing.assert_close(gate.T @ gate, torch.eye(gate.shape[1]), atol=1e-5, rtol=0)
    biases = cell.bias_ih.view(cell.num_gates, SIZE) + cell.bias_hh.view(cell.num_gates, SIZE)
    expected = torch.zeros(cell.num_gates, SIZE)
    expected[cell.keep_gate] = KEEP_BIAS
    assert torch.equal(biases, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_keep_gate_keeps(kind: str) -> None:
    cell = make(kind)
    features, memory = sequences(cell)
    with torch.no_grad():
        cell.bias_ih[cell.keep_gate * SIZE : (cell.keep_gate + 1) * SIZE] = 50.0
        if kind == "lstm":
            cell.bias_ih[:SIZE] = -50.0  # nothing enters
    state = cell.step(features[:NUM], memory.state)
    torch.testing.assert_close(state[:, -SIZE:], memory.state[:, -SIZE:])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_networks(kind: str, shared: bool) -> None:
    """Each torso has its cell; nothing of torch's global random state; acting and learning agree."""
    model = ModelConfig.parse({"recurrent": kind, "recurrent_size": 7, "shared_torso": shared})
    before = torch.get_rng_state()
    digests = [FlatParameters(ActorCritic(ENV, model, seed)).sha256() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert digests[0] == digests[1] != digests[2]
    network = ActorCritic(ENV, model, 0)
    assert network.state_size == 7 * (1 if kind == "gru" else 2) * (1 if shared else 2)
    obs = torch.randn(LENGTH, NUM, WIDTH, generator=generator(1))
    state = torch.randn(NUM, network.state_size, generator=generator(2))
    memory = Memory(state, torch.zeros(LENGTH + 1, NUM, dtype=torch.bool))
    policy, value = network(obs.flatten(0, 1), memory)
    assert torch.equal(network.value(obs.flatten(0, 1), memory), value)
    for t in range(LENGTH):
        acted, state = network.step(obs[t], state)
        torch.testing.assert_close(acted, policy.view(LENGTH, NUM, -1)[t])
        if t == 2:  # from a state in the middle the rest is the same, the value too
            rest = network(obs[3:].flatten(0, 1), Memory(state, memory.begins[:3]))
            torch.testing.assert_close(rest[0], policy[3 * NUM :])
            torch.testing.assert_close(rest[1], value[3 * NUM :])
    with pytest.raises(ValueError, match="needs its memory"):
        network(obs[0])


@pytest.mark.parametrize("shared", [True, False])
def test_no_sequences_at_all(shared: bool) -> None:
    network = ActorCritic(ENV, ModelConfig(recurrent="gru", shared_torso=shared), 0)
    memory = Memory(torch.zeros(0, network.state_size), torch.zeros(LENGTH, 0, dtype=torch.bool))
    policy, value = network(torch.zeros(0, WIDTH), memory)
    assert policy.shape == (0, 3) and value.shape == (0,)


def test_a_cell_is_part_of_the_flat_parameters() -> None:
    network = ActorCritic(ENV, ModelConfig(recurrent="lstm"), 0)
    flat = FlatParameters(network)
    memory = Memory(torch.zeros(2, network.state_size), torch.zeros(3, 2, dtype=torch.bool))
    before = network(torch.ones(6, WIDTH), memory)[1].detach()
    network(torch.ones(6, WIDTH), memory)[1].sum().backward()
    assert network.cell is not None
    assert network.cell.weight_hh.grad is not None
    assert network.cell.weight_hh.grad.data_ptr() >= flat.gradient.data_ptr()
    assert float(network.cell.weight_hh.grad.abs().sum()) > 0
    flat.bind(np.zeros(flat.size, np.float32))
    assert not torch.equal(network(torch.ones(6, WIDTH), memory)[1], before)
