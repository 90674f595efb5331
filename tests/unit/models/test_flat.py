"""FlatParameters: views that never come loose."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.models.flat import FlatParameters


def make_module() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def test_values_are_kept_and_ordered() -> None:
    module = make_module()
    expected = torch.cat([p.detach().reshape(-1).clone() for p in module.parameters()])
    flat = FlatParameters(module)
    assert flat.size == 3 * 5 + 5 + 5 * 2 + 2
    assert flat.vector.dtype == torch.float32
    assert flat.vector.is_contiguous()
    assert torch.equal(flat.vector, expected)
    assert np.shares_memory(flat.numpy, flat.vector.numpy())


def test_writing_the_vector_changes_the_module_also_after_inference() -> None:
    module = make_module()
    flat = FlatParameters(module)
    obs = torch.ones(4, 3)
    with torch.inference_mode():
        before = module(obs).clone()
        flat.numpy[...] = 0
        after = module(obs)
    assert before.abs().max() > 0
    assert torch.equal(after, torch.zeros(4, 2))


def test_backward_adds_into_the_gradient_vector() -> None:
    module = make_module()
    flat = FlatParameters(module)
    module(torch.ones(4, 3)).sum().backward()
    once = flat.gradient.clone()
    assert once[-2:].tolist() == [4.0, 4.0]
    module(torch.ones(4, 3)).sum().backward()
    torch.testing.assert_close(flat.gradient, 2 * once)
    flat.zero_gradient()
    module(torch.ones(4, 3)).sum().backward()
    assert torch.equal(flat.gradient, once)


def test_load_and_digest() -> None:
    flat = FlatParameters(make_module())
    values = np.arange(flat.size, dtype=np.float32)
    flat.load(values)
    assert flat.sha256() == hashlib.sha256(values.tobytes()).hexdigest()
    values[0] = 9
    assert flat.numpy[0] == 0, "load must copy"


@pytest.mark.parametrize("values", [np.zeros(3, np.float32), np.zeros((32, 1), np.float32), np.zeros(32)])
def test_load_refuses_other_shapes_and_types(values: np.ndarray) -> None:
    flat = FlatParameters(make_module())
    assert flat.size == 32
    before = flat.sha256()
    with pytest.raises(ValueError, match="this network needs"):
        flat.load(values)
    assert flat.sha256() == before


def test_no_parameters() -> None:
    flat = FlatParameters(nn.Tanh())
    flat.zero_gradient()
    flat.load(np.zeros(0, np.float32))
    assert flat.size == 0
    assert flat.sha256() == hashlib.sha256(b"").hexdigest()


def test_half_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight.*float16"):
        FlatParameters(nn.Linear(2, 2).half())


def test_a_bound_vector_is_used_where_it_lies() -> None:
    module = make_module()
    flat = FlatParameters(module)
    own, obs = flat.numpy, torch.ones(4, 3)
    before = own.copy()
    other = (2 * before).astype(np.float32)
    flat.bind(other)
    with torch.inference_mode():
        doubled = module(obs)
        other[...] = 0
        assert torch.equal(module(obs), torch.zeros(4, 2)) and doubled.abs().max() > 0
    assert flat.numpy is other and np.shares_memory(flat.vector.numpy(), other)
    assert np.array_equal(own, before), "the vector from before is let go"
    flat.bind(own)
    assert torch.equal(
        torch.cat([p.detach().reshape(-1) for p in module.parameters()]), torch.from_numpy(before)
    )


def test_gradients_stay_when_a_vector_is_bound() -> None:
    module = make_module()
    flat = FlatParameters(module)
    module(torch.ones(4, 3)).sum().backward()
    once = flat.gradient.clone()
    flat.bind(flat.numpy.copy())
    assert torch.equal(flat.gradient, once)
    module(torch.ones(4, 3)).sum().backward()
    torch.testing.assert_close(flat.gradient, 2 * once)


@pytest.mark.parametrize("values", [np.zeros(3, np.float32), np.zeros((32, 1), np.float32), np.zeros(32)])
def test_bind_refuses_other_shapes_and_types(values: np.ndarray) -> None:
    flat = FlatParameters(make_module())
    before = flat.numpy
    with pytest.raises(ValueError, match="this network needs"):
        flat.bind(values)
    assert flat.numpy is before


class Scaled(nn.Module):
    """A parameter, a float32 buffer, and others that do not travel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("factor", torch.tensor([2.0, 3.0, 4.0]))
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(5), persistent=False)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs * self.weight * self.factor


def test_float_buffers_lie_behind_the_parameters_and_have_no_gradient() -> None:
    inner = Scaled()
    module = nn.ModuleList([inner, nn.Linear(2, 2, bias=False), inner])
    flat = FlatParameters(module)
    assert flat.size == 3 + 4 + 3 and flat.gradient_size == flat.gradient.numel() == 7
    assert flat.vector[7:].tolist() == [2.0, 3.0, 4.0] and flat.trainable.numel() == 7
    assert np.shares_memory(flat.numpy, flat.trainable.numpy())
    inner(torch.ones(3)).sum().backward()
    assert flat.gradient[:3].tolist() == [2.0, 3.0, 4.0]


def test_buffers_follow_the_vector_and_are_in_the_digest() -> None:
    module = Scaled()
    flat = FlatParameters(module)
    before = flat.sha256()
    module.factor.copy_(torch.tensor([5.0, 6.0, 7.0]))
    assert flat.numpy[3:].tolist() == [5, 6, 7] and flat.sha256() != before
    flat.bind(np.float32([1, 1, 1, 8, 9, 10]))
    assert module.factor.tolist() == [8, 9, 10]
    flat.load(np.float32([1, 1, 1, 0, 0, 1]))
    assert module(torch.ones(3)).tolist() == [0, 0, 1]
    flat.move(torch.device("cpu"))
    assert flat.gradient.numel() == 3 and module.factor.tolist() == [0, 0, 1]


def test_by_name_it_is_what_the_module_has_and_comes_back() -> None:
    module, other = make_module(), nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    for one in (module, other):
        one.register_buffer("scale", torch.zeros(2))
    with torch.no_grad():
        module.scale += 7
    flat = FlatParameters(module)
    named = flat.named()
    assert named.keys() == module.state_dict().keys()
    for name, values in module.state_dict().items():
        assert named[name].tobytes() == values.numpy().tobytes() and named[name].shape == values.shape
    again = FlatParameters(other)
    again.load_named(dict(reversed(named.items())))
    assert again.sha256() == flat.sha256() and other.scale.tolist() == [7, 7]
    flat.numpy[...] = 0
    assert named["scale"].tolist() == [7, 7]  # a copy


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda values: values.pop("0.bias"), "0.bias"),
        (lambda values: values.update(other=values["0.bias"]), "other"),
        (lambda values: values.update({"0.bias": np.zeros(4, np.float32)}), r"0.bias has shape \(4,\)"),
        (lambda values: values.update({"0.bias": np.zeros(5)}), "float64"),
    ],
)
def test_other_names_and_shapes_are_refused(change, word) -> None:
    flat = FlatParameters(make_module())
    values, before = flat.named(), flat.sha256()
    change(values)
    with pytest.raises(ValueError, match=word):
        flat.load_named(values)
    assert flat.sha256() == before
