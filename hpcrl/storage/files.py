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


def sync(path: Path) -> None:
    """Bring a file, or the entries of a folder, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some network file systems cannot sync a folder; their rename is durable on its own.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
