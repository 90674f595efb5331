"""From what a person names on the command line to a RunConfig. Loads neither torch nor MPI."""

from __future__ import annotations

import difflib
import importlib.util
import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic import ValidationError

from hpcrl.comm.ranks import resize
from hpcrl.config import ConfigError, RunConfig, explain, load_object, set_dotted

_FORMS = "path/to/file.py:function, package.module:function, a config.json, a run directory, or a .yaml file"


def load_config(
    recipe: str | RunConfig,
    overrides: Sequence[str] = (),
    num_ranks: int | None = None,
    *,
    own_directory: bool = False,
) -> RunConfig:
    """The checked configuration behind `recipe`, with `a.b=value` overrides applied, for `num_ranks` ranks.

    `own_directory`: where `recipe` is a run directory, that becomes `storage.run_dir`; else it is for a new run.
    Raises ConfigError with the repair for anything that does not fit.
    """
    config = recipe if isinstance(recipe, RunConfig) else _load(recipe)
    if own_directory and isinstance(recipe, str) and (Path(recipe) / "config.json").is_file():
        storage = config.storage.to_dict() | {"run_dir": recipe}
        config = RunConfig.parse(config.to_dict() | {"storage": storage})
    config = config.with_overrides(overrides)
    return config if num_ranks is None else resize(config, num_ranks)


def _load(recipe: str, came_from: tuple[Path, ...] = ()) -> RunConfig:
    path = Path(recipe)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json":
        return RunConfig.parse(_without_own_directory(_read_mapping(path, json.loads), path))
    if path.suffix in (".yaml", ".yml"):
        return _from_yaml(path, came_from)
    name, _, function = recipe.rpartition(":")
    if name.endswith(".py"):
        return _call(_import_file(Path(name)), function, recipe)
    if name:
        return _checked(load_object(recipe, f"recipe {recipe!r}"), recipe)
    raise ConfigError(f"recipe {recipe!r} is not of a known form; use {_FORMS}")


def _without_own_directory(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """A finished run's config.json runs again, in a new directory, also where the old one had been named."""
    storage = values.get("storage")
    run_dir = storage.get("run_dir") if isinstance(storage, dict) else None
    if isinstance(run_dir, str) and Path(run_dir).resolve() == path.parent.resolve():
        return values | {"storage": {**values["storage"], "run_dir": None}}
    return values


def _from_yaml(path: Path, came_from: tuple[Path, ...]) -> RunConfig:
    if path.resolve() in came_from:
        raise ConfigError(f"{path} names itself as its recipe")
    values = _read_mapping(path, yaml.safe_load)
    if not isinstance(values.get("recipe"), str):
        raise ConfigError(f"{path} needs a line `recipe: ...`; the other lines are overrides")
    resolved = _load(values.pop("recipe"), (*came_from, path.resolve())).to_dict()
    for dotted, value in _flatten(values):
        set_dotted(resolved, dotted, value)
    return RunConfig.parse(resolved)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in values.items():
        inner = isinstance(value, Mapping) and not f"{prefix}{key}".endswith("kwargs")
        flat += _flatten(value, f"{prefix}{key}.") if inner else [(f"{prefix}{key}", value)]
    return flat


def _read_mapping(path: Path, parse: Any) -> dict[str, Any]:
    try:
        values = parse(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; a recipe is {_FORMS}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not valid {path.suffix[1:]}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values, not {type(values).__name__}")
    return values


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=3)
        hint = f"; did you mean {path.parent / near[0]}?" if near else "."
        raise ConfigError(f"recipe file {str(path)!r} does not exist{hint} A recipe is {_FORMS}")
    spec = importlib.util.spec_from_file_location(f"hpcrl_recipe_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"recipe file {str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    with _failures_of(f"recipe file {str(path)!r}"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _failures_of(what: str) -> Iterator[None]:
    """Whatever a user's code raises becomes a ConfigError that names `what`, and the line where it happened."""
    try:
        yield
    except ConfigError:
        raise
    except ValidationError as error:
        raise ConfigError(f"{what}: {explain(error)}") from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, SyntaxError) else f" ({place.filename}, line {place.lineno})"
        raise ConfigError(f"{what} fails: {type(error).__name__}: {error}{where}") from error


def _call(module: ModuleType, function: str, recipe: str) -> RunConfig:
    found = getattr(module, function, None)
    if not callable(found) or function.startswith("_"):
        names = [
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__ and name[0] != "_"
        ]
        raise ConfigError(
            f"recipe {recipe!r}: no function {function!r}; the file has {', '.join(names) or 'none'}"
        )
    return _checked(found, recipe)


def _checked(function: Any, recipe: str) -> RunConfig:
    with _failures_of(f"recipe {recipe!r}"):
        config = function()
    if not isinstance(config, RunConfig):
        raise ConfigError(f"recipe {recipe!r} returned {type(config).__name__}, not a hpcrl.config.RunConfig")
    return config
