"""Target networks: older parameters that the learned ones are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hpcrl.models.flat import FlatParameters


class Target:
    """The parameters of a target network, which follow those that are learned. The same on all learners.

    Attributes:
        vector: float32 [size], with what lies behind the parameters.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        """At first those that are learned."""
        self._parameters = parameters
        self.vector = parameters.vector.clone()

    def using(self) -> AbstractContextManager[None]:
        """Within the block the network is the target network. Nothing may be differentiated that reaches out of it."""
        return self._parameters.using(self.vector)

    def follow(self, share: float = 1.0) -> None:
        """Go this share of the way to the learned parameters: 1 copies them, less averages (Polyak)."""
        if share == 1:
            self.vector.copy_(self._parameters.vector)
        else:
            self.vector.lerp_(self._parameters.vector, share)

    def move(self, device: torch.device) -> None:
        """Keep them on `device` from here on."""
        self.vector = self.vector.to(device)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """They, as a copy."""
        return {"target_parameters": self.vector.numpy(force=True).copy()}

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`, which `check_state` has checked, bit for bit."""
        self.vector.copy_(torch.tensor(np.ascontiguousarray(state["target_parameters"])))
