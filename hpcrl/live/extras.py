"""Libraries that only some exports need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hpcrl.config import ConfigError


def load_extra(module: str, extra: str) -> Any:
    """Import a module of one of hpcrl's extras. Raises ConfigError that names the extra where it cannot be."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"--{extra} needs {module.partition('.')[0]}, which cannot be imported ({error}); "
            f"pip install 'hpcrl[{extra}]'"
        ) from error
