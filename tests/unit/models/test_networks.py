"""Networks: seeds, shapes, scales, and refusals that name the key."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcrl.config import ConfigError, ModelConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.functional.statistics import RunningMoments
from hpcrl.models.flat import FlatParameters
from hpcrl.models.networks import ActorCritic
from hpcrl.models.torsos import Residual

DISCRETE = ActionSpec(kind="discrete", size=3)
CONTINUOUS = ActionSpec(kind="continuous", size=2, low=(-1, -1), high=(1, 1))


def make_env(shape: tuple[int, ...] = (4,), dtype: str = "float32", action: ActionSpec = DISCRETE) -> EnvSpec:
    return EnvSpec(id="Test-v0", observation=ArraySpec(shape=shape, dtype=dtype), action=action)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_equal_seeds_give_equal_parameters_and_leave_the_global_state_alone(
    shared: bool, action: ActionSpec
) -> None:
    model = ModelConfig(shared_torso=shared)
    before = torch.get_rng_state()
    digests = [
        FlatParameters(ActorCritic(make_env(action=action), model, seed)).sha256() for seed in (1, 1, 2)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("hidden_sizes", [(), (5,), (8, 6)])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_shapes_and_the_partial_forwards(shared: bool, hidden_sizes: tuple[int, ...], rows: int) -> None:
    network = ActorCritic(make_env(), ModelConfig(shared_torso=shared, hidden_sizes=hidden_sizes), 0)
    obs = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    before = obs.clone()
    policy, value = network(obs)
    assert policy.shape == (rows, 3)
    assert value.shape == (rows,)
    assert torch.equal(network.policy(obs), policy)
    assert torch.equal(network.value(obs), value)
    assert torch.equal(obs, before), "layers that write in place must not write over the observations"


def test_separate_torsos_share_nothing() -> None:
    network = ActorCritic(make_env(), ModelConfig(shared_torso=False), 0)
    network(torch.ones(2, 4))[1].sum().backward()
    assert all(parameter.grad is None for parameter in network.torso.parameters())


@pytest.mark.parametrize(
    ("shape", "dtype"), [((), "int64"), ((2, 3), "float64"), ((6,), "uint8"), ((1,), "bool")]
)
def test_vectors_of_any_type_are_flattened(shape: tuple[int, ...], dtype: str) -> None:
    network = ActorCritic(make_env(shape, dtype), ModelConfig(), 0)
    obs = torch.from_numpy(np.ones((5, *shape), dtype))
    policy, value = network(obs)
    assert policy.dtype == value.dtype == torch.float32
    flat = ActorCritic(make_env((max(1, obs[0].numel()),)), ModelConfig(), 0)
    assert torch.equal(flat(obs.reshape(5, -1).float())[0], policy)


def test_initial_scales() -> None:
    network = ActorCritic(make_env(), ModelConfig(hidden_sizes=(32,)), 0)
    weight = network.torso[1].weight
    torch.testing.assert_close(weight.T @ weight, 2 * torch.eye(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(network.policy_head.weight.norm(dim=1), torch.full((3,), 0.01))
    torch.testing.assert_close(network.value_head.weight.norm(), torch.tensor(1.0))
    assert all((layer.bias == 0).all() for layer in (network.torso[1], network.policy_head))


def test_gaussian_policies_have_one_log_std_per_dimension() -> None:
    network = ActorCritic(make_env(action=CONTINUOUS), ModelConfig(initial_log_std=-0.5), 0)
    assert dict(network.named_parameters())["distribution.log_std"].tolist() == [-0.5, -0.5]
    assert not any(
        "log_std" in name for name, _ in ActorCritic(make_env(), ModelConfig(), 0).named_parameters()
    )


@pytest.mark.parametrize(("size", "features"), [((84, 84), 3136), ((36, 36), 64), ((36, 51), 2 * 64)])
def test_nature_cnn(size: tuple[int, int], features: int) -> None:
    model = ModelConfig(torso="nature_cnn", hidden_sizes=(16,), activation="relu")
    network = ActorCritic(make_env((4, *size), "uint8"), model, 0)
    assert network.torso[-2].weight.shape == (16, features)
    obs = torch.randint(0, 256, (2, 4, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    policy, value = network(obs)
    assert policy.shape == (2, 3)
    assert torch.equal(network.policy(obs), policy)
    assert torch.equal(network.value(obs), value)
    torch.testing.assert_close(network.torso[0](obs).max(), obs.max() / 255)


@pytest.mark.parametrize(("size", "features"), [((84, 84), 32 * 11 * 11), ((1, 1), 32), ((9, 5), 32 * 2)])
def test_impala_resnet(size: tuple[int, int], features: int) -> None:
    model = ModelConfig(torso="impala_resnet", hidden_sizes=(16,), activation="relu")
    network = ActorCritic(make_env((4, *size), "uint8"), model, 0)
    assert network.torso[-2].weight.shape == (16, features)
    convolutions = [layer for layer in network.torso.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [16] * 5 + [32] * 10
    obs = torch.randint(0, 256, (2, 4, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    policy, value = network(obs)
    assert torch.equal(network.policy(obs), policy)
    assert torch.equal(network.value(obs), value)
    value.sum().backward()
    assert all(layer.weight.grad is not None for layer in convolutions)


def test_residual_blocks_add_to_their_input_and_keep_its_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(8, 16, 12, 12, generator=generator)
    before, block = features.clone(), Residual(16, generator)
    out = block(features)
    assert torch.equal(features, before), "the input is still needed for the sum"
    inner = block.second(torch.relu(block.first(torch.relu(features))))
    torch.testing.assert_close(out, features + inner)
    for _ in range(6):
        features = Residual(16, generator)(features)
    assert 0.8 < features.std() < 2.5


MASKED_IMAGE = EnvSpec(
    id="Masked-v0",
    observation=ArraySpec(shape=(3 * 40 * 40 + 3,), dtype="uint8"),
    action=DISCRETE,
    masked=ArraySpec(shape=(3, 40, 40), dtype="uint8"),
)


@pytest.mark.parametrize("torso", ["nature_cnn", "impala_resnet"])
def test_the_mask_is_split_off_before_the_torso_and_forbids_choices(torso: str) -> None:
    model = ModelConfig(torso=torso, hidden_sizes=(8,), shared_torso=False)
    network = ActorCritic(MASKED_IMAGE, model, 0)
    image = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    mask = torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.uint8)
    obs = torch.cat((image.flatten(1), mask), 1)
    plain = ActorCritic(make_env((3, 40, 40), "uint8"), model, 0)
    outputs, value = network(obs)
    expected, expected_value = plain(image)
    assert torch.equal(value, expected_value) and torch.equal(network.value(obs), value)
    assert torch.equal(outputs, torch.where(mask.bool(), expected, -torch.inf))
    assert torch.equal(network.policy(obs), outputs)


@pytest.mark.parametrize(
    ("torso", "shape", "dtype"),
    [
        ("nature_cnn", (4,), "float32"),
        ("nature_cnn", (3, 84, 84), "float32"),
        ("nature_cnn", (3, 35, 84), "uint8"),
        ("nature_cnn", (84, 84, 3), "uint8"),
        ("nature_cnn", (0, 84, 84), "uint8"),
        ("impala_resnet", (4,), "uint8"),
        ("impala_resnet", (3, 84, 84), "float32"),
        ("impala_resnet", (0, 84, 84), "uint8"),
        ("mlp", (3, 84, 84), "uint8"),
        ("mlp", (0,), "float32"),
        ("mlp", (3,), "complex64"),
    ],
)
def test_torsos_refuse_what_they_cannot_see(torso: str, shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.torso={torso}.*Test-v0"):
        ActorCritic(make_env(shape, dtype), ModelConfig.parse({"torso": torso}), 0)


@pytest.mark.parametrize(("shape", "dtype"), [((3,), "float32"), ((2, 3), "float64"), ((), "float32")])
@pytest.mark.parametrize("shared", [True, False])
def test_every_way_through_the_network_normalizes(shape: tuple[int, ...], dtype: str, shared: bool) -> None:
    """As a network without, that is given what the formula says."""
    options = {"shared_torso": shared, "observation_clip": 1.5}
    plain = ActorCritic(make_env(shape), ModelConfig(**options), 0)
    network = ActorCritic(make_env(shape, dtype), ModelConfig(normalize_observations=True, **options), 0)
    assert network.normalizer is not None
    rng = np.random.default_rng(0)
    mean, squares = rng.normal(size=shape) * 100, rng.random(shape) * 50
    moments = RunningMoments(9.0, torch.as_tensor(mean), torch.as_tensor(squares))
    network.normalizer.set(moments, epsilon=0.5)
    obs = mean + 3 * rng.normal(size=(20, *shape))
    given = torch.from_numpy(obs.astype(dtype))
    before = given.clone()
    expected = torch.from_numpy(
        np.clip((obs - mean) / np.sqrt(squares / 9 + 0.5), -1.5, 1.5).astype(np.float32)
    )
    for found, wanted in (
        (network(given)[0], plain(expected)[0]),
        (network(given)[1], plain(expected)[1]),
        (network.policy(given), plain.policy(expected)),
        (network.value(given), plain.value(expected)),
    ):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert torch.equal(given, before)
    assert len(list(network.buffers())) == 2, "both torsos have the same moments"


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_only_floats_are_normalized(dtype: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.normalize_observations=true does not fit the {dtype} "):
        ActorCritic(make_env((4,), dtype), ModelConfig(normalize_observations=True), 0)
