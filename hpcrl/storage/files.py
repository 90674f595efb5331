"""Small files that are whole or absent: written aside, synced, renamed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replace `path` atomically; a reader sees the old text or the new one, also after a kill."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Replace `path` atomically by indented JSON."""
    write_text(path, json.dumps(values, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in `path`; None when the file is missing, empty or not a JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        return None
    return values if isinstance(values, dict) else None


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SEAL = "sha256_of_the_rest"


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """The values with their own hash, in place of one that was there. Pure."""
    rest = {name: value for name, value in values.items() if name != SEAL}
    return rest | {SEAL: _digest(rest)}


def seal_is_broken(values: dict[str, Any]) -> bool:
    """Whether `sealed` values are not those that were sealed, or have no seal. Pure."""
    return values.get(SEAL) != _digest({name: value for name, value in values.items() if name != SEAL})


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def sync(path: Path) -> None:
    """Bring a file, or the entries of a folder, onto the disk. Raises OSError where a file does not get there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some network file systems cannot sync a folder; their rename is durable on its own.
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
