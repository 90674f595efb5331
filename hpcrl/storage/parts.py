"""The parts of a checkpoint: named values of components in HDF5, and in blocks beside it where they are large."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcrl.storage.blocks import LARGE_BYTES, read_blocks, write_blocks

Value = npt.NDArray[Any] | int | float | str
Values = dict[str, Value]
Given = Mapping[str, npt.NDArray[Any] | np.generic | int | float | str]
"""What may be stored: numeric or bool arrays of any shape, int of any size, float, str."""


def write_component(group: h5py.Group, where: str, values: Given, own: Path, before: Path | None) -> None:
    """Store the values of a component; large arrays in blocks in the folder `own`. Local.

    before: the blocks of this part in another set, if there is one. `where` names the component in errors. Raises
    ValueError for what cannot be stored.
    """
    for name, value in values.items():
        if not name or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"checkpoint value {f'{where}/{name}'!r}: this name cannot be stored")
        data, kind = _encode(f"{where}/{name}", value)
        if kind == "array" and data.nbytes >= LARGE_BYTES:
            dataset = group.create_dataset(name, data=write_blocks(own, before, data))
            dataset.attrs["kind"] = "blocks"
            dataset.attrs["dtype"], dataset.attrs["shape"] = data.dtype.str, data.shape
        else:
            dataset = group.create_dataset(name, data=data)
            dataset.attrs["kind"] = kind


def read_component(group: h5py.Group, own: Path) -> Values:
    """The values of a component whose large arrays lie in blocks in `own`. Local."""
    values: Values = {}

    def take(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        data, kind = np.asarray(item[()]), str(item.attrs["kind"])
        if kind == "blocks":
            values[name] = value = np.empty(tuple(item.attrs["shape"]), str(item.attrs["dtype"]))
            read_blocks(own, data, value)
        else:
            values[name] = _decode(data, kind)

    group.visititems(take)
    return values


def block_digests(file: h5py.File) -> list[npt.NDArray[np.uint8]]:
    """Hashes of the blocks of every large array in a part."""
    found: list[npt.NDArray[np.uint8]] = []

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.attrs["kind"] == "blocks":
            found.append(np.asarray(item[()]))

    file.visititems(take)
    return found


def _encode(where: str, value: Any) -> tuple[Any, str]:
    if isinstance(value, str):
        return np.frombuffer(value.encode(), np.uint8), "str"
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biufc" or value.dtype.names is not None:
            raise ValueError(f"checkpoint value {where!r} has type {value.dtype}; use numbers or bool")
        return value, "array"
    if isinstance(value, float):
        return np.float64(value), "float"
    if isinstance(value, int) and not isinstance(value, bool):
        return np.frombuffer(str(value).encode(), np.uint8), "int"  # RNG states have 128 bits
    raise ValueError(
        f"checkpoint value {where!r} has type {type(value).__name__}; use array, int, float or str"
    )


def _decode(data: npt.NDArray[Any], kind: str) -> Value:
    if kind == "str":
        return data.tobytes().decode()
    if kind == "int":
        return int(data.tobytes())
    return float(data) if kind == "float" else data
