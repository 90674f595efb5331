"""The state of one gymnasium environment as text, where everything it holds is plain values; nothing is pickled."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec

_SKIPPED = (gymnasium.Space, gymnasium.Env, EnvSpec)
"""Attributes of these types do not change from step to step."""


class NotPlain(ValueError):
    """Some attribute is neither plain nor known not to change."""


def save(env: gymnasium.Env[Any, Any]) -> str | None:
    """The state of an environment and its wrappers as JSON; None where it holds what JSON cannot.

    Numbers, text, arrays, numpy's default generator, and lists, tuples and dictionaries of these are plain. An
    environment that holds more (a simulator) may have methods `save_state(path)` and `restore_state(path)`, which write
    and read one file.
    """
    try:
        return json.dumps([_save_layer(layer) for layer in _layers(env)])
    except NotPlain:
        return None


def load(env: gymnasium.Env[Any, Any], text: str) -> None:
    """Continue from what `save` gave, in an equal environment that has been reset. Raises ValueError."""
    layers, documents = list(_layers(env)), json.loads(text)
    if [type(layer).__name__ for layer in layers] != [document["type"] for document in documents]:
        raise ValueError(f"the saved state is of {' around '.join(one['type'] for one in documents)}")
    for layer, document in zip(layers, documents, strict=True):
        if "file" in document:
            with tempfile.TemporaryDirectory(prefix="hpcrl-") as folder:
                path = Path(folder) / "state"
                path.write_bytes(bytes.fromhex(document["file"]))
                layer.restore_state(path)  # type: ignore[attr-defined]
            continue
        for name, value in document["values"].items():
            setattr(layer, name, _decode(value))


def text_rows(texts: Sequence[str]) -> npt.NDArray[np.uint8]:
    """[B, longest] bytes, filled up with zeros. Pure."""
    encoded = [text.encode() for text in texts]
    longest = max(len(one) for one in encoded)
    return np.stack([np.frombuffer(one.ljust(longest, b"\0"), np.uint8) for one in encoded])


def row_texts(rows: npt.NDArray[np.uint8]) -> list[str]:
    """What `text_rows` was given. Pure."""
    return [row.tobytes().rstrip(b"\0").decode() for row in rows]


def _layers(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """The environment and what it wraps, outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _save_layer(layer: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    kind = type(layer).__name__
    if all(callable(getattr(type(layer), name, None)) for name in ("save_state", "restore_state")):
        with tempfile.TemporaryDirectory(prefix="hpcrl-") as folder:
            path = Path(folder) / "state"
            layer.save_state(path)  # type: ignore[attr-defined]
            return {"type": kind, "file": path.read_bytes().hex()}
    values = {name: value for name, value in vars(layer).items() if not isinstance(value, _SKIPPED)}
    return {"type": kind, "values": {name: _encode(value) for name, value in values.items()}}


def _encode(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        array = np.ascontiguousarray(value)
        where = {
            "dtype": array.dtype.str,
            "shape": list(np.shape(value)),
            "scalar": isinstance(value, np.generic),
        }
        return {"is": "array", "data": array.tobytes().hex(), **where}
    if isinstance(value, np.random.Generator) and isinstance(value.bit_generator, np.random.PCG64):
        return {"is": "generator", "state": value.bit_generator.state}
    if type(value) in (list, tuple):
        return {"is": type(value).__name__, "items": [_encode(item) for item in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"is": "dict", "items": {key: _encode(item) for key, item in value.items()}}
    raise NotPlain(type(value).__name__)


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value["is"] == "array":
        array = np.frombuffer(bytes.fromhex(value["data"]), value["dtype"]).reshape(value["shape"]).copy()
        return array[()] if value["scalar"] else array
    if value["is"] == "generator":
        generator = np.random.Generator(np.random.PCG64())
        generator.bit_generator.state = value["state"]
        return generator
    if value["is"] == "dict":
        return {key: _decode(item) for key, item in value["items"].items()}
    items = [_decode(item) for item in value["items"]]
    return tuple(items) if value["is"] == "tuple" else items
