"""The states of random generators as numbers, so that their streams can be saved and go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_WORD = (1 << 64) - 1


def generator_rows(generators: Sequence[np.random.Generator]) -> npt.NDArray[np.uint64]:
    """[B, 6]: the states of PCG64 generators, 128 bits in two words each. Raises ValueError for another kind. Pure."""
    rows = np.zeros((len(generators), 6), np.uint64)
    for row, generator in zip(rows, generators, strict=True):
        state: Any = generator.bit_generator.state
        if state["bit_generator"] != "PCG64":
            raise ValueError(f"the state of a {state['bit_generator']} generator cannot be saved; use PCG64")
        for place, key in ((0, "state"), (2, "inc")):
            row[place], row[place + 1] = state["state"][key] & _WORD, state["state"][key] >> 64
        row[4], row[5] = state["has_uint32"], state["uinteger"]
    return rows


def load_generator_rows(generators: Sequence[np.random.Generator], rows: npt.NDArray[np.uint64]) -> None:
    """Continue the streams that `generator_rows` saved."""
    for generator, row in zip(generators, rows.tolist(), strict=True):
        generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": row[0] | row[1] << 64, "inc": row[2] | row[3] << 64},
            "has_uint32": row[4],
            "uinteger": row[5],
        }
