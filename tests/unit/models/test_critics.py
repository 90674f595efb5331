"""Critics side by side are as many networks of their own."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from hpcrl.config import ModelConfig
from hpcrl.models.critics import PolicyAndCritics
from tests.unit.algorithms.support import CONTINUOUS

MODEL = ModelConfig(hidden_sizes=(9, 8), activation="tanh", shared_torso=False)


def network(seed: int = 0) -> PolicyAndCritics:
    return PolicyAndCritics(CONTINUOUS, MODEL, seed, num_outputs=3, num_critics=3, temperature=0.5)


def test_each_critic_is_a_network_of_its_own() -> None:
    critics, generator = network().critics, torch.Generator().manual_seed(0)
    for layer in critics.layers:
        torch.nn.init.normal_(layer.bias, generator=generator)
    obs, action = torch.randn(5, 4, generator=generator), torch.randn(5, 3, generator=generator)
    values = critics(critics.encode(obs), action)
    assert values.shape == (3, 5)
    for index in range(3):
        hidden = torch.cat((obs, action), 1)
        for layer in critics.layers:
            hidden = linear(hidden, layer.weight[index], layer.bias.view(3, -1)[index]).tanh()
        torch.testing.assert_close(values[index], linear(hidden, critics.head.weight[index]).squeeze(1))


def test_all_start_orthogonal_and_different() -> None:
    critics = network().critics
    for layer, gain in ((critics.layers[0], 2), (critics.layers[1], 2), (critics.head, 1)):
        assert (layer.bias == 0).all()
        for weight in layer.weight:
            gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(gram, gain * torch.eye(len(gram)), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(layer.weight[0], layer.weight[1], atol=1e-3)


def test_equal_seeds_give_equal_networks_and_parts_hold_them_in_order() -> None:
    states = [torch.cat([one.detach().flatten() for one in network(seed).parameters()]) for seed in (0, 0, 1)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
    made = network()
    parts = made.parts()
    assert parts[-1].stop == len(states[0])
    for part, module in zip(parts, (made.policy, made.critics, made.temperature), strict=True):
        own = torch.cat([one.detach().flatten() for one in module.parameters()])
        assert torch.equal(states[0][part.start : part.stop], own)
    assert made.temperature.log.exp().item() == 0.5


def test_frozen_critics_pass_the_gradient_on() -> None:
    """To the action, and to nothing of their own."""
    made, obs = network(), torch.ones(2, 4)
    action = torch.zeros(2, 3, requires_grad=True)
    for frozen in (False, True):
        given = torch.autograd.grad(
            made.critics(obs, action, frozen=frozen).sum(),
            (action, *made.critics.parameters()),
            allow_unused=True,
        )
        assert given[0].abs().min() > 0
        assert all((one is None) == frozen for one in given[1:])
