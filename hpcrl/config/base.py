"""The machinery of configuration: frozen typed sections, JSON round trip, overrides, near-match errors."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigError(ValueError):
    """A configuration the user can repair; the message says how. Ends a command with exit code 2."""


class Config(BaseModel):
    """Base of every section: frozen, keyword-only, unknown keys refused, field docstrings kept as help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any], section: str = "") -> Self:
        """Build from plain data. Raises ConfigError with one line per wrong key, which it names within `section`."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_explain_all(cls, error, section)) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only; `parse` reads it back to an equal object."""
        return self.model_dump(mode="json", serialize_as_any=True)

    def to_json(self) -> str:
        """The resolved configuration as indented JSON."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=False) + "\n"

    def with_overrides(self, assignments: Iterable[str]) -> Self:
        """A new configuration with dotted `a.b=value` assignments applied and everything validated again.

        Values are JSON where they parse as JSON, else strings. Raises ConfigError for unknown keys.
        """
        values = self.to_dict()
        for assignment in assignments:
            key, found, text = assignment.partition("=")
            if not found or not key:
                raise ConfigError(f"--set {assignment!r} is not of the form section.key=value")
            set_dotted(values, key.strip(), parse_value(text.strip()))
        return self.parse(values)


def parse_value(text: str) -> Any:
    """JSON where it is JSON (numbers, true, null, lists), also True/False/None, else the string itself."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except json.JSONDecodeError:
        return text


def set_dotted(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Assign into nested dicts. Raises ConfigError naming near matches and the valid keys."""
    *parents, last = dotted.split(".")
    node: Any = values
    for depth, part in enumerate(parents):
        if part not in node:
            raise ConfigError(unknown_key(".".join([*parents[:depth], part]), node))
        node = node[part]
        if not isinstance(node, dict):
            raise ConfigError(
                f"{'.'.join(parents[: depth + 1])} is a value, not a section; it has no {last!r}"
            )
    if last not in node and parents[-1:] != ["kwargs"]:
        raise ConfigError(unknown_key(dotted, node))
    node[last] = value


def unknown_key(dotted: str, valid: Iterable[str]) -> str:
    """The message for a key that does not exist: near matches first, then the whole valid list."""
    valid = sorted(valid)
    prefix, _, name = dotted.rpartition(".")
    near = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    where = f" of {prefix}" if prefix else ""
    return f"unknown key {dotted!r}{hint} Valid keys{where}: {', '.join(valid)}"


def explain(error: ValidationError) -> str:
    """What a section's constructor had against its values, one line per wrong key: for errors in recipes."""
    sections = list(Config.__subclasses__())
    for section in sections:
        sections += section.__subclasses__()
    cls = next((section for section in sections if section.__name__ == error.title), Config)
    return _explain_all(cls, error, error.title)


def _explain_all(cls: type[BaseModel], error: ValidationError, section: str) -> str:
    return "\n".join(_explain(cls, item, section) for item in error.errors())


def _explain(cls: type[BaseModel], item: Any, section: str) -> str:
    location = ".".join(str(part) for part in (section, *item["loc"]) if part != "")
    if item["type"] == "extra_forbidden":
        node: Any = cls
        for part in item["loc"][:-1]:
            field = (
                node.model_fields.get(part)
                if isinstance(node, type) and issubclass(node, BaseModel)
                else None
            )
            node = field.annotation if field is not None else None
        if isinstance(node, type) and issubclass(node, BaseModel):
            return unknown_key(location, node.model_fields)
        return f"unknown key {location!r}"
    message = item["msg"].removeprefix("Value error, ")
    if location and item["type"] != "value_error":
        return f"{location}={item['input']!r}: {message}"
    return str(message)
