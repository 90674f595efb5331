"""The model store of a run: `RUN/models/`, policies that may be played, exported and named, without what trains them.

A model is the parameters of one version, with the normalizers that belong to it: `VERSION.npz`, an array per name in
the network, which numpy reads and which cannot hold code. Beside it `VERSION.json` says what it is and holds its
SHA-256; a model without it is none. Both are written by the run alone. Names that people give, and which model is the
current one, are in `tags.json`, which only `hpcrl models` writes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from hpcrl.config import ConfigError
from hpcrl.storage.files import read_json, sha256, sync, write_json

Parameters = Mapping[str, npt.NDArray[np.float32]]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Score:
    """An evaluation of a model."""

    mean: float
    """Of the raw returns of the episodes."""
    std: float
    """Over n, not n - 1."""
    episodes: int
    seed: int
    greedy: bool

    @classmethod
    def of(cls, returns: Sequence[float], seed: int, greedy: bool) -> Self | None:
        """None where the mean is not finite."""
        mean = float(np.mean(returns))
        return cls(mean, float(np.std(returns)), len(returns), seed, greedy) if math.isfinite(mean) else None


@dataclass(frozen=True, slots=True)
class Model:
    """A stored model, as its manifest says."""

    path: Path
    version: int
    """The update after which the parameters were these."""
    env_steps: int
    attempt: int
    created: str
    """ISO 8601, UTC."""
    sha256: str
    """Of the file at `path`."""
    evaluation: Score | None
    """None where it was not evaluated."""


@dataclass(frozen=True, slots=True)
class Tags:
    """What people have said of the models of a run."""

    tags: dict[str, int]
    """Name -> version."""
    current: int | None
    """The version that was rolled back to; None: the newest, whichever that is."""

    def names(self, version: int) -> list[str]:
        """Tags of a version, in order."""
        return sorted(name for name, tagged in self.tags.items() if tagged == version)


class ModelStore:
    """The run's hold on its models; made by learner 0 alone. Local."""

    def __init__(self, run_dir: Path, keep: int) -> None:
        """`keep`: newest models that stay; 0: nothing is stored."""
        self._run_dir, self._keep = Path(run_dir), keep

    def add(
        self, version: int, parameters: Parameters, evaluation: Score | None, *, env_steps: int, attempt: int
    ) -> None:
        """Store a model, whole or not at all, in place of one of this version; then remove those that need not stay.

        Without an evaluation, one that was stored with these very parameters stays. Raises OSError when the disk
        refuses, or a person has named another model of this version, of an attempt whose last updates were lost; stored
        models are untouched then.
        """
        if not self._keep:
            return
        folder = self._run_dir / "models"
        folder.mkdir(exist_ok=True)
        path, aside = _weights(folder, version), folder / f".{version:012d}.npz.tmp"
        with aside.open("wb") as file:
            np.savez(file, **parameters)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        found = sha256(aside)
        before = next((one for one in stored_models(self._run_dir) if one.version == version), None)
        if before is None or before.sha256 != found:
            if before is not None and version in _named(read_tags(self._run_dir)):
                aside.unlink()
                raise FileExistsError(
                    f"{path} of attempt {before.attempt} is tagged; another one does not replace it"
                )
            _manifest(folder, version).unlink(missing_ok=True)
        elif before.evaluation is not None and evaluation is None:
            aside.unlink()
            return
        aside.replace(path)
        sync(folder)
        values = {
            "format": _FORMAT,
            "version": version,
            "env_steps": env_steps,
            "attempt": attempt,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "sha256": found,
            "evaluation": None if evaluation is None else asdict(evaluation),
        }
        write_json(_manifest(folder, version), values)
        sync(folder)
        self._remove()

    def forget_after(self, version: int) -> None:
        """Remove models above `version`, whose updates are lost, but not those that a person has named."""
        for model in stored_models(self._run_dir):
            if model.version > version and model.version not in _named(read_tags(self._run_dir)):
                _discard(model)

    def _remove(self) -> None:
        models = stored_models(self._run_dir)
        best, newest = best_model(models), models[-self._keep :]
        for model in models:
            stays = model in newest or model == best
            # looked at as late as can be: a tag may just have been given
            if not stays and model.version not in _named(read_tags(self._run_dir)):
                _discard(model)
        known = {f"{model.version:012d}" for model in stored_models(self._run_dir)}
        folder = self._run_dir / "models"
        for path in (*folder.glob("[0-9]*.npz"), *folder.glob(".[0-9]*.tmp")):  # of a store that never ended
            if path.stem not in known:
                path.unlink(missing_ok=True)


def stored_models(run_dir: Path) -> list[Model]:
    """The models of a run, oldest version first; nothing is verified, and damaged manifests are left out. Local."""
    found = []
    for path in sorted((Path(run_dir) / "models").glob("[0-9]*.json")):
        with contextlib.suppress(ValueError, OSError):
            found.append(read_model(path))
    return found


def read_model(manifest: Path) -> Model:
    """What a manifest says. Raises ValueError for one that is damaged or of a newer format."""
    values = read_json(manifest)
    try:
        if values is None or values["format"] != _FORMAT or int(values["version"]) != int(manifest.stem):
            raise ValueError(f"{manifest} is no manifest of this model in format {_FORMAT}")
        score = values["evaluation"]
        return Model(
            path=manifest.with_suffix(".npz"),
            version=int(values["version"]),
            env_steps=int(values["env_steps"]),
            attempt=int(values["attempt"]),
            created=str(values["created"]),
            sha256=str(values["sha256"]),
            evaluation=None if score is None else Score(**score),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{manifest} is not a manifest: {error!r}") from error


def best_model(models: Sequence[Model]) -> Model | None:
    """The one of the highest mean evaluation return, of equal ones the newest; None where none was evaluated. Pure."""
    evaluated = [(one.evaluation.mean, one.version, one) for one in models if one.evaluation is not None]
    return max(evaluated, key=lambda one: one[:2])[2] if evaluated else None


def load_parameters(model: Model) -> dict[str, npt.NDArray[np.float32]]:
    """Name -> values, float32, in the order of the network. Raises ValueError for a file that is not as stored."""
    try:
        if sha256(model.path) != model.sha256:
            raise ValueError(f"{model.path} does not match the hash in its manifest")
        with np.load(model.path, allow_pickle=False) as file:
            return dict(file.items())
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{model.path} cannot be read: {error}") from error


def read_tags(run_dir: Path) -> Tags:
    """What `hpcrl models` has noted; nothing where it has not."""
    values = read_json(Path(run_dir) / "models" / "tags.json") or {}
    current = values.get("current")
    tags = {str(name): int(version) for name, version in (values.get("tags") or {}).items()}
    return Tags(tags, None if current is None else int(current))


def write_tags(run_dir: Path, tags: Tags) -> None:
    """Replace the notes. Raises ConfigError where a model they name is gone; then they stay as before."""
    before, path = read_tags(run_dir), Path(run_dir) / "models" / "tags.json"
    write_json(path, asdict(tags))
    there = {model.version for model in stored_models(run_dir)}
    if gone := (_named(tags) - _named(before)) - there:  # the run has just removed it
        write_json(path, asdict(before))
        raise ConfigError(f"model {min(gone)} of {run_dir} is not stored any more; {_versions(run_dir)}")


def find_model(run_dir: Path, name: str = "current") -> Model:
    """The model that `name` means: a version, a tag, or best, newest, current.

    Raises ConfigError that tells what is there.
    """
    models, tags = stored_models(run_dir), read_tags(run_dir)
    if not models:
        raise ConfigError(
            f"{run_dir} has stored no model; one is stored at each evaluation and at the end, unless models.keep=0"
        )
    best = best_model(models)
    known = {
        **{str(model.version): model.version for model in models},
        **tags.tags,
        "newest": models[-1].version,
        "current": models[-1].version if tags.current is None else tags.current,
        **({} if best is None else {"best": best.version}),
    }
    found = next((model for model in models if model.version == known.get(name)), None)
    if found is None:
        why = "; none was evaluated" if name == "best" else ""
        raise ConfigError(f"{run_dir} has no model {name!r}{why}; {_versions(run_dir)}")
    return found


def _versions(run_dir: Path) -> str:
    models, tags = stored_models(run_dir), read_tags(run_dir)
    names = [str(model.version) for model in models] + sorted(tags.tags)
    return f"there are {', '.join(names) or 'none'}, and newest, best and current"


def export_model(model: Model, path: Path) -> None:
    """Write the parameters of a model to `path`, an .npz that numpy reads without hpcrl: an array per name, float32.

    With them `hpcrl`, a text: its manifest. Raises ConfigError for another ending, or where there is no folder for it.
    """
    if path.suffix != ".npz":
        raise ConfigError(f"{str(path)!r} must end in .npz")
    said = asdict(model) | {"path": str(model.path)}
    try:
        parameters = load_parameters(model)
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with aside.open("wb") as file:
            np.savez(file, **parameters, hpcrl=np.array(json.dumps(said)))  # type: ignore[arg-type]
        aside.replace(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model.version} cannot be exported: {error}") from error


def _named(tags: Tags) -> set[int]:
    return {*tags.tags.values(), *([] if tags.current is None else [tags.current])}


def _weights(folder: Path, version: int) -> Path:
    return folder / f"{version:012d}.npz"


def _manifest(folder: Path, version: int) -> Path:
    return folder / f"{version:012d}.json"


def _discard(model: Model) -> None:
    model.path.with_suffix(".json").unlink(missing_ok=True)
    model.path.unlink(missing_ok=True)
