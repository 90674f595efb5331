"""Checkpoints: a set of arrays under one update's number, whole and verified, or not there at all."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcrl.storage.files import read_json, sync

Value = npt.NDArray[Any] | int | float | str
Components = dict[str, dict[str, Value]]

_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_MANIFEST = "manifest.json"

_log = logging.getLogger(__name__)


def save(
    run_dir: Path,
    update: int,
    components: Mapping[str, Mapping[str, npt.NDArray[Any] | np.generic | int | float | str]],
    keep: int = 2,
    meta: Mapping[str, Any] | None = None,
) -> Path:
    """Write `checkpoints/UPDATE` and remove all but the newest `keep` up to this update.

    One HDF5 file per component (name -> numeric or bool array of any shape, int of any size, float or str).
    Written aside; the manifest with the hash of each file comes last; then one rename: under its final name a
    checkpoint is always whole. A set of the same update is replaced. Only one process may save.

    Returns the checkpoint's folder. Raises ValueError for a value or name that cannot be stored, OSError when
    the disk refuses; earlier checkpoints are untouched in both cases.
    """
    if update < 0 or keep < 1:
        raise ValueError(f"update={update} must be at least 0 and keep={keep} at least 1")
    base = Path(run_dir) / "checkpoints"
    base.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(base)
    aside = base / f".tmp-{update:012d}-{os.getpid()}"
    aside.mkdir()
    hashes = {}
    for component, values in components.items():
        if not _NAME.fullmatch(component):
            raise ValueError(f"component name {component!r}: use letters, digits, '.', '_' and '-'")
        path = aside / f"{component}.h5"
        _write_component(path, component, values)
        sync(path)
        hashes[path.name] = _sha256(path)
    manifest = {"format": _FORMAT, "update": update, "sha256": hashes, "meta": dict(meta or {})}
    (aside / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    sync(aside / _MANIFEST)
    sync(aside)
    final = base / f"{update:012d}"
    _discard(final)
    aside.rename(final)
    sync(base)
    for old in [path for path in _sets(base) if path.name <= final.name][keep:]:
        _discard(old)
    return final


def load_newest(run_dir: Path) -> tuple[int, Components, dict[str, Any]]:
    """Load the newest checkpoint whose files all match their hashes: (update, components, meta).

    Damaged sets are passed over with a warning that names the damaged file; sets are never mixed. Nothing
    that is read can run code. Raises FileNotFoundError when there is no checkpoint, ValueError when all are
    damaged.
    """
    base = Path(run_dir) / "checkpoints"
    sets = _sets(base)
    if not sets:
        raise FileNotFoundError(f"no checkpoint in {base}")
    faults = []
    for path in sets:
        try:
            return _load(path)
        except (ValueError, OSError) as error:
            _log.warning("checkpoint passed over: %s", error)
            faults.append(str(error))
    raise ValueError(f"every checkpoint in {base} is damaged: {'; '.join(faults)}")


def _load(path: Path) -> tuple[int, Components, dict[str, Any]]:
    manifest = read_json(path / _MANIFEST)
    if manifest is None or not {"format", "update", "sha256", "meta"} <= manifest.keys():
        raise ValueError(f"{path / _MANIFEST} is missing or not a manifest")
    if manifest["format"] != _FORMAT:
        raise ValueError(f"{path} has checkpoint format {manifest['format']}; this version reads {_FORMAT}")
    if manifest["update"] != int(path.name):
        raise ValueError(f"{path / _MANIFEST} belongs to update {manifest['update']}")
    for name, expected in manifest["sha256"].items():
        if not (path / name).is_file():
            raise ValueError(f"{path / name} is missing")
        if _sha256(path / name) != expected:
            raise ValueError(f"{path / name} does not match the hash in its manifest")
    components = {name.removesuffix(".h5"): _read_component(path / name) for name in manifest["sha256"]}
    return manifest["update"], components, manifest["meta"]


def _write_component(path: Path, component: str, values: Mapping[str, Any]) -> None:
    with h5py.File(path, "w", locking=False) as file:
        for name, value in values.items():
            where = f"{component}/{name}"
            if not name or any(part in ("", ".", "..") for part in name.split("/")):
                raise ValueError(f"checkpoint value {where!r}: this name cannot be stored")
            data, kind = _encode(where, value)
            dataset = file.create_dataset(name, data=data)
            dataset.attrs["kind"] = kind


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


def _read_component(path: Path) -> dict[str, Value]:
    values: dict[str, Value] = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            values[name] = _decode(np.asarray(item[()]), str(item.attrs["kind"]))

    with h5py.File(path, "r", locking=False) as file:
        file.visititems(take)
    return values


def _decode(data: npt.NDArray[Any], kind: str) -> Value:
    if kind == "str":
        return data.tobytes().decode()
    if kind == "int":
        return int(data.tobytes())
    return float(data) if kind == "float" else data


def _sets(base: Path) -> list[Path]:
    """Checkpoints under their final names, newest first."""
    if not base.is_dir():
        return []
    return sorted((path for path in base.iterdir() if path.name.isdigit() and path.is_dir()), reverse=True)


def _discard(path: Path) -> None:
    """Remove a checkpoint, if it is there, so that no part of it is ever seen under its name."""
    if path.exists():
        aside = path.with_name(f".tmp-old-{path.name}-{os.getpid()}")
        path.rename(aside)
        shutil.rmtree(aside)


def _remove_leftovers(base: Path) -> None:
    for path in base.glob(".tmp-*"):
        shutil.rmtree(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
