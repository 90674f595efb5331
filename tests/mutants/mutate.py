"""Rewrite a piece of a function for the length of a test."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

import pytest


def mutate(monkeypatch: pytest.MonkeyPatch, target: Any, old: str, new: str) -> None:
    """Replace `old` by `new` in the source of a function or method of hpcrl, wherever it was imported to.

    Raises ValueError when `old` does not occur exactly once: the mutant has lost the code it was written for.
    """
    function = inspect.unwrap(target)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:
        raise ValueError(f"{function.__qualname__} holds {old!r} {source.count(old)} times, not once")
    module = sys.modules[function.__module__]
    namespace = dict(vars(module))
    exec(compile(source.replace(old, new), f"<mutant of {function.__qualname__}>", "exec"), namespace)
    mutant = namespace[function.__name__]
    owner, _, _ = function.__qualname__.rpartition(".")
    if owner:
        monkeypatch.setattr(getattr(module, owner), function.__name__, mutant)
        return
    for holder in [held for name, held in sys.modules.items() if name.split(".")[0] == "hpcrl"]:
        for name, value in list(vars(holder).items()):
            if value is target:
                monkeypatch.setattr(holder, name, mutant)
