"""Parameters of a module, with what travels with them, as one contiguous vector, and their gradients as another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


class FlatParameters:
    """One float32 vector behind all parameters and float32 buffers of a module, and one behind the gradients.

    The module's parameters, buffers and gradients become views: writing the vector changes the module at once, and a
    backward pass adds into `gradient`. First come the parameters, in the order of `module.parameters()`, then the
    float32 buffers that belong to the module's state: constants of a version that no gradient changes. Both vectors
    may be moved into memory that is given later (`use_vector`, `use_gradient`).

    Attributes:
        vector: float32 [size], parameters and buffers.
        gradient: float32 [gradient_size], of the parameters; zero until a backward pass.
        ranges: where each parameter lies in the vectors.
        vectors_only: the ranges of parameters with one dimension or none: biases, scales.
    """

    def __init__(self, module: nn.Module) -> None:
        """Move the parameters and float32 buffers of `module` into one vector, keeping their values.

        Raises ValueError when a parameter is not float32.
        """
        self._parameters = list(module.parameters())
        self._names = [name for name, _ in (*module.named_parameters(), *_named_float_buffers(module))]
        for name, parameter in module.named_parameters():
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"parameter {name} has dtype {parameter.dtype}; use float32 for all parameters"
                )
        self.ranges: list[range] = []
        stop = 0
        for parameter in self._parameters:
            start, stop = stop, stop + parameter.numel()
            self.ranges.append(range(start, stop))
        both = list(zip(self._parameters, self.ranges, strict=True))
        self.vectors_only = [part for parameter, part in both if parameter.ndim < 2]
        self.gradient_size = stop
        self._buffers = [buffer for _, buffer in _named_float_buffers(module)]
        self._hooks: list[Any] = []
        everything = [*self._parameters, *self._buffers]
        self.use_vector(torch.cat([torch.zeros(0), *(one.data.reshape(-1) for one in everything)]))
        self.use_gradient(torch.zeros_like(self.trainable))

    def use_vector(self, memory: Tensor) -> None:
        """Let parameters and buffers be views of `memory`, float32 [size], with the values that stand there."""
        self.vector = memory
        self._numpy = memory.numpy() if memory.device.type == "cpu" else None
        for parameter, part in zip(self._parameters, self.ranges, strict=True):
            parameter.data = memory[part.start : part.stop].view(parameter.shape)
        start = self.gradient_size
        for buffer in self._buffers:
            buffer.data = memory[start : start + buffer.numel()].view(buffer.shape)
            start += buffer.numel()

    @contextmanager
    def using(self, memory: Tensor) -> Iterator[None]:
        """Within the block the module has the parameters in `memory`, float32 [size]; afterwards its own again."""
        own = self.vector
        self.use_vector(memory)
        try:
            yield
        finally:
            self.use_vector(own)

    def bind(self, vector: npt.NDArray[np.float32]) -> None:
        """Use float32 `vector` [size] as the parameters from here on, where it lies: no copy, the values are its own.

        It must outlive every use of the module. Raises ValueError for another shape or dtype.
        """
        if vector is self._numpy:
            return
        self._check(vector)
        self.use_vector(torch.from_numpy(vector))
        self._numpy = vector

    def use_gradient(self, memory: Tensor) -> None:
        """Let the gradients be views of `memory`, float32 [gradient_size]."""
        self.gradient = memory
        for parameter, part in zip(self._parameters, self.ranges, strict=True):
            parameter.grad = memory[part.start : part.stop].view(parameter.shape)

    def on_gradient(self, callback: Callable[[int], None] | None) -> None:
        """Call `callback(i)` whenever a backward pass has added to the gradient of parameter i; replaces the last."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if callback is None:
            return
        for index, parameter in enumerate(self._parameters):
            hook = partial(_call_with_index, callback, index)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def move(self, device: torch.device) -> None:
        """Keep the parameters on `device` from here on; the gradient there is zero, in memory of its own."""
        self.use_vector(self.vector.to(device))
        self.use_gradient(torch.zeros_like(self.trainable))

    @property
    def numpy(self) -> npt.NDArray[np.float32]:
        """float32 [size], numpy view of `vector` (same memory). Raises RuntimeError for parameters on a device."""
        if self._numpy is None:
            raise RuntimeError(f"parameters on {self.vector.device} have no numpy view")
        return self._numpy

    @property
    def size(self) -> int:
        """Number of parameters and entries of buffers: of what is published and saved."""
        return self.vector.numel()

    @property
    def trainable(self) -> Tensor:
        """float32 [gradient_size], the part of `vector` that has a gradient (same memory)."""
        return self.vector[: self.gradient_size]

    def zero_gradient(self) -> None:
        """Set the gradient to zero in place; the views stay."""
        self.gradient.zero_()

    def load(self, values: npt.NDArray[Any]) -> None:
        """Copy float32 `values` [size] into the vector. Raises ValueError for another shape or dtype."""
        self._check(values)
        self.vector.copy_(torch.tensor(np.ascontiguousarray(values)))

    def named(self) -> dict[str, npt.NDArray[np.float32]]:
        """Name in the module -> float32 values, a copy, of all parameters and buffers in the vector, in its order."""
        everything = [*self._parameters, *self._buffers]
        return {name: one.numpy(force=True).copy() for name, one in zip(self._names, everything, strict=True)}

    def load_named(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Copy what `named` gave into the vector. Raises ValueError for a missing, unknown or misshaped entry."""
        own = self.named()
        if wrong := sorted(own.keys() ^ values.keys()):
            raise ValueError(
                f"these parameters are not on both sides: {', '.join(wrong)}: saved with another model section?"
            )
        for name, value in values.items():
            if (value.shape, value.dtype) != (own[name].shape, own[name].dtype):
                raise ValueError(
                    f"parameter {name} has shape {value.shape} and dtype {value.dtype}; this network needs "
                    f"{own[name].shape} float32: was it saved with another model or env section?"
                )
        self.load(np.concatenate([np.zeros(0, np.float32), *(values[name].reshape(-1) for name in own)]))

    def sha256(self) -> str:
        """Hexadecimal digest of the parameters' bytes: equal digests, equal networks."""
        return hashlib.sha256(self.vector.cpu().numpy().tobytes()).hexdigest()

    def _check(self, values: npt.NDArray[Any]) -> None:
        if values.shape != (self.size,) or values.dtype != np.float32:
            raise ValueError(
                f"parameters have shape {values.shape} and dtype {values.dtype}; "
                f"this network needs ({self.size},) float32: was it saved with another model or env section?"
            )


def _named_float_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Float32 buffers that `module.state_dict()` has, each once."""
    state = module.state_dict(keep_vars=True)
    named = module.named_buffers()
    return [(name, buffer) for name, buffer in named if name in state and buffer.dtype == torch.float32]


def _call_with_index(callback: Callable[[int], None], index: int, _: Tensor) -> None:
    callback(index)
