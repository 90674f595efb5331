"""Parameters and gradients of a module as one contiguous vector each."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn


class FlatParameters:
    """One float32 CPU vector behind all parameters of a module, and one behind their gradients.

    The module's parameters and gradients become views: writing the vector changes the module at once, and a
    backward pass adds into `gradient`. Order and size are those of `module.parameters()`.

    Attributes:
        vector: float32 [size], the parameters.
        gradient: float32 [size], their gradients; zero until a backward pass.
        numpy: float32 [size], numpy view of `vector` (same memory).
    """

    def __init__(self, module: nn.Module) -> None:
        """Move the parameters of `module` into one vector, keeping their values.

        Raises ValueError when a parameter is not float32.
        """
        parameters = list(module.parameters())
        for name, parameter in module.named_parameters():
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"parameter {name} has dtype {parameter.dtype}; use float32 for all parameters"
                )
        self.vector = torch.zeros(sum(parameter.numel() for parameter in parameters))
        self.gradient = torch.zeros_like(self.vector)
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            view = self.vector[start:end].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.gradient[start:end].view(parameter.shape)
            start = end
        self.numpy: npt.NDArray[np.float32] = self.vector.numpy()

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.vector.numel()

    def zero_gradient(self) -> None:
        """Set the gradient to zero in place; the views stay."""
        self.gradient.zero_()

    def load(self, values: npt.NDArray[Any]) -> None:
        """Copy float32 `values` [size] into the parameters. Raises ValueError for another shape or dtype."""
        if values.shape != self.numpy.shape or values.dtype != np.float32:
            raise ValueError(
                f"parameters have shape {values.shape} and dtype {values.dtype}; "
                f"this network needs ({self.size},) float32: was it saved with another model or env section?"
            )
        self.numpy[...] = values

    def sha256(self) -> str:
        """Hexadecimal digest of the parameters' bytes: equal digests, equal networks."""
        return hashlib.sha256(self.numpy.tobytes()).hexdigest()
