"""A user's own module as torso: what works, and what is refused before anything is made."""

from __future__ import annotations

import re

import pytest
import torch

from hpcrl.config import ConfigError, ModelConfig, RunConfig
from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec
from hpcrl.models.flat import FlatParameters
from hpcrl.models.networks import ActorCritic

MODULE = "tests.unit.models.torsos_for_tests"
ENV = EnvSpec(
    id="Test-v0",
    observation=ArraySpec(shape=(2, 3), dtype="float32"),
    action=ActionSpec(kind="discrete", size=3),
)


def build(name: str, seed: int = 0, **options: object) -> ActorCritic:
    return ActorCritic(ENV, ModelConfig.parse({"torso": f"{MODULE}:{name}", **options}), seed)


@pytest.mark.parametrize("name", ["Sound", "Lazy"])
def test_equal_seeds_give_equal_modules_and_leave_the_global_state_alone(name: str) -> None:
    before = torch.get_rng_state()
    networks = [build(name, seed, shared_torso=False) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    digests = [FlatParameters(network).sha256() for network in networks]
    assert digests[0] == digests[1] != digests[2]
    first, second = (dict(network.named_buffers()) for network in networks[:2])
    assert all(torch.equal(buffer, second[key]) for key, buffer in first.items())
    weights = [next(torso.parameters()) for torso in (networks[0].torso, networks[0].value_torso)]
    assert not torch.equal(*weights)


def test_the_module_gets_the_spec_and_its_hooks_are_called_when_acting_too() -> None:
    network = build("Sound", hidden_sizes=())
    obs = torch.randn(4, 2, 3)
    assert network.torso[0].module.observation == ENV.observation
    outputs, _ = network(obs)
    assert torch.equal(network.policy(obs), outputs)
    assert network.torso[0](obs).min() >= 1
    assert network.policy_head.in_features == 7


def test_hidden_layers_follow_it() -> None:
    assert build("Sound", hidden_sizes=(5, 4)).policy_head.in_features == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Missing", "cannot be imported"),
        ("function", "not a class derived from torch.nn.Module"),
        ("ENV", "cannot be imported"),
        ("WithoutArguments", "TypeError"),
        ("Raises", "RuntimeError: shapes do not match"),
        ("ReturnsTwo", "returns tuple"),
        ("ReturnsSquare", "float32 [3, 1, 7]"),
        ("ReturnsDouble", "torch.float64 [3, 7]"),
        ("InDouble", "parameter scale is torch.float64"),
        ("Frozen", "requires_grad=False"),
        ("WithBatchNorm", "buffer norm.running_mean changes"),
        ("WithDropout", "different features"),
        ("MixesRows", "depend on the others"),
        ("Overwrites", "writes over the observations"),
    ],
)
def test_what_the_ranks_could_not_agree_on_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        build(name)
    assert f"model.torso='{MODULE}:{name}'" in str(error.value)


def test_only_the_form_of_the_name_is_looked_at_before_torch_is_there() -> None:
    run = {"name": "x", "env": {"id": "E"}, "algorithm": {"name": "ppo"}}
    RunConfig.parse({**run, "model": {"torso": "no.such_module:Torso"}})
    with pytest.raises(
        ConfigError, match=r"model\.torso='impala_resnt' is not known; did you mean impala_resnet\?"
    ):
        RunConfig.parse({**run, "model": {"torso": "impala_resnt"}})
    with pytest.raises(ConfigError, match=r"package\.module:Class"):
        RunConfig.parse({**run, "model": {"torso": "Torso"}})
