"""A user's own torch.nn.Module as torso: made, tried out, and refused where the learners could not agree on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hpcrl.config import ConfigError, load_object
from hpcrl.config.model import BUILTIN_TORSOS
from hpcrl.data.specs import ArraySpec, EnvSpec


def user_torso(path: str, env: EnvSpec, generator: torch.Generator) -> tuple[list[nn.Module], int]:
    """The module of `package.module:Class`, as one layer, and the width of its output.

    Made by Class(env.features) under torch's global random state, which is seeded from `generator` for that time and
    put back. Raises ConfigError when it cannot be imported or made, and for all that would make ranks differ.
    """
    what = f"model.torso={path!r}"
    found = load_object(path, what, BUILTIN_TORSOS)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"{what} is not a class derived from torch.nn.Module")
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = found(env.features)
            examples = _examples(env.features)
            before = {name: buffer.clone() for name, buffer in module.named_buffers()}
            given = examples.clone()
            features: Any = module(given)
            problem = (
                _of_output(features)
                or _of_state(module, before)
                or _of_rows(module, examples, given, features)
            )
        except Exception as error:  # a user's module may fail in any way
            raise ConfigError(
                f"{what} does not work with the {env.features.dtype} observations {env.features.shape} of {env.id}: "
                f"{type(error).__name__}: {error}"
            ) from error
    if problem:
        raise ConfigError(f"{what} cannot be used with {env.id}: {problem}")
    return [_Called(module)], features.shape[1]


class _Called(nn.Module):
    """Calls the module with its hooks, which a Torso passes by."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, obs: Tensor) -> Any:
        return self.module(obs)


def _examples(spec: ArraySpec) -> Tensor:
    """Three different observations of zeros and ones, which any embedding takes as well."""
    numbers = torch.randint(0, 2, (3, *spec.shape))
    return numbers.to(getattr(torch, spec.dtype))


def _of_output(features: Any) -> str:
    if not isinstance(features, Tensor):
        return f"it returns {type(features).__name__}; return one Tensor"
    if features.ndim != 2 or len(features) != 3 or features.shape[1] == 0 or features.dtype != torch.float32:
        return f"for 3 observations it returns {features.dtype} {list(features.shape)}; return torch.float32 [3, width]"
    return ""


def _of_rows(module: nn.Module, examples: Tensor, given: Tensor, features: Tensor) -> str:
    """What would make a log-probability differ between acting and learning."""
    if not torch.equal(given, examples):
        return "it writes over the observations; copy what it changes"
    again = module(examples)
    if not torch.equal(again, features):
        return (
            "equal observations give different features (Dropout? BatchNorm?), so the log-probabilities of a policy "
            "that acted could not be computed again; leave such layers out"
        )
    alone = module(examples[1:2])
    if not torch.allclose(alone, features[1:2], rtol=1e-3, atol=1e-4):
        return "features of an observation depend on the others of its batch (BatchNorm?); use LayerNorm or GroupNorm"
    return ""


def _of_state(module: nn.Module, before: dict[str, Tensor]) -> str:
    """What FlatParameters could not hold, or what no version of the parameters fixes."""
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            return (
                f"parameter {name} is {parameter.dtype}, requires_grad={parameter.requires_grad}; all must be "
                "torch.float32 and trained: keep constants in buffers (register_buffer)"
            )
    for name, buffer in module.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            return (
                f"buffer {name} changes when the module is called (running statistics?), so that the ranks would "
                "not agree on it; use LayerNorm or GroupNorm"
            )
    return ""
