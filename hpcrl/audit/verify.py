"""Whether a run directory is as the run left it: result files, their order, rows, checkpoints, status."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.audit.check_models import check_models
from hpcrl.audit.verdict import Audit, audit
from hpcrl.config import ConfigError
from hpcrl.storage import checkpoint
from hpcrl.storage.files import read_json
from hpcrl.storage.integrity import check_file
from hpcrl.storage.models import stored_models
from hpcrl.storage.result_file import HEAD_HASH, open_reader
from hpcrl.storage.resume import differences
from hpcrl.storage.rundir import read_status, status_damage
from hpcrl.storage.runlog import AttemptHead, attempt_files, linked_attempts, read_heads, read_table

_LIVE_TRIES = 3


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found."""

    run: str
    status: str
    """As `read_status` gives it; of a single file: file."""
    files: int
    """Result files that were looked at."""
    checkpoints: int
    """Sets that were looked at."""
    models: int
    """Stored models that were looked at."""
    violations: tuple[str, ...]
    """Each names file, table and rows, or the key, that is not as it was written."""
    notes: tuple[str, ...]
    """What could not be looked at, or is lost without being wrong."""

    @property
    def sound(self) -> bool:
        """Nothing is wrong."""
        return not self.violations

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {"sound": self.sound, **asdict(self)}


def verify_run(run: str | Path) -> Verified:
    """Verify a run directory, the result file of one attempt or a merged one, in whatever state it is. Local.

    A run may be going on. Raises ConfigError when `run` is none of these.
    """
    path = Path(run)
    files = attempt_files(path)
    if not files:
        what = "holds no result file" if path.exists() else "does not exist"
        raise ConfigError(f"{str(path)!r} {what}; give a run directory or a result file")
    folder = None if path.is_file() and path.name != "run.h5" else files[0].parents[1]
    status: dict[str, Any] = read_status(folder) if folder is not None else {"status": "file"}
    live = status["status"] == "running"
    violations = [line for file in files for line in _settled(lambda file=file: check_file(file), live)]  # type: ignore[misc]
    notes = [
        f"{file.name}: no hashes; it was written before there were any" for file in files if not _hashed(file)
    ]
    broken = any(": cannot be read" in line for line in violations)
    if not broken:
        found, said = _compare_rows(path, live)
        violations += found
        notes += said
    sets, models = [], 0
    if folder is not None:
        sets = checkpoint.find_sets(folder)
        violations += [line for one in sets for line in _checkpoint(one)]
        notes += [
            f"{one} was found damaged before" for one in sorted((folder / "checkpoints").glob("damaged-*"))
        ]
        models = len(stored_models(folder))
        violations += _settled(lambda: check_models(folder), live)
        if damage := status_damage(folder):
            violations.append(f"status.json: {damage}")
        elif status.get("attempt", 0) > len(files):
            notes.append(f"attempt {status['attempt']} was begun, and has no result file")
        if not broken:
            violations += _settled(lambda: _lineage(folder, read_heads(path), status), live)
    said_once = tuple(dict.fromkeys(violations))
    return Verified(str(path), status["status"], len(files), len(sets), models, said_once, tuple(notes))


def _compare_rows(path: Path, live: bool) -> tuple[list[str], list[str]]:
    """Violations and notes of `hpcrl audit`."""
    audits: list[Audit] = []

    def check() -> Sequence[str]:
        audits.append(audit(path))
        return audits[-1].violations

    try:
        return _settled(check, live), list(audits[-1].notes)
    except ConfigError as error:  # of an algorithm whose lag has no bound to prove
        return [], [f"rows were not compared with each other: {error}"]


def _settled(check: Callable[[], Any], live: bool) -> list[str]:
    """What a check finds; of a run that goes on, what it still finds when its writer has gone on."""
    found = list(check())
    for _ in range(_LIVE_TRIES if live else 0):
        if not found:
            break
        time.sleep(0.1)
        found = list(check())
    return found


def _hashed(path: Path) -> bool:
    try:
        with open_reader(path) as file:
            return HEAD_HASH in file.attrs
    except (OSError, KeyError, RuntimeError):
        return True  # said elsewhere


def _checkpoint(path: Path) -> Iterator[str]:
    try:
        checkpoint.verify(path)
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        if path.exists():  # else a run that goes on has replaced it by a newer one
            yield f"checkpoint {path.name}: {' '.join(str(error).split())}"


def _lineage(folder: Path, heads: list[AttemptHead], status: dict[str, Any]) -> Iterator[str]:
    """Attempts are numbered without a gap and go on from where there was something; links, status and files agree."""
    for place, head in enumerate(heads):
        if (head.attempt, int(head.path.stem)) != (place + 1, place + 1):
            yield f"{head.path.name}: is attempt {head.attempt}; attempt {place + 1} is to be here"
            break
    if heads[0].first_update:
        yield f"{heads[0].path.name}: goes on from update {heads[0].first_update}, but there is no attempt before"
    updates = read_table(folder, "updates")
    for before, head in pairwise(heads):
        own = updates["update"][updates["attempt"] < head.attempt]
        reached = max([before.first_update, *own.tolist()])
        if head.first_update > reached:
            yield f"{head.path.name}: goes on from update {head.first_update}; those before came to {reached}"
    yield from _links(folder, heads)
    yield from _sets(folder, updates)
    yield from _status(folder, heads, status)


def _links(folder: Path, heads: list[AttemptHead]) -> Iterator[str]:
    expected = [head.path.stem for head in heads]
    try:
        found = linked_attempts(folder)
    except (OSError, KeyError, RuntimeError) as error:
        yield f"run.h5: cannot be read: {' '.join(str(error).split())}"
        return
    if found != {name: f"attempts/{name}.h5" for name in expected}:
        yield f"run.h5: links to {', '.join(found.values()) or 'nothing'}; there are attempts {', '.join(expected)}"


def _sets(folder: Path, updates: Any) -> Iterator[str]:
    """A checkpoint has the env_steps that the rows have at its update."""
    steps = dict(zip(updates["update"].tolist(), updates["env_steps"].tolist(), strict=True))
    for path in checkpoint.find_sets(folder):
        meta = (read_json(path / "manifest.json") or {}).get("meta", {})
        known = steps.get(int(path.name))
        if known is not None and meta.get("env_steps") != known:
            yield f"checkpoint {path.name}: {meta.get('env_steps')} env_steps; its update has {known} in `updates`"


def _status(folder: Path, heads: list[AttemptHead], status: dict[str, Any]) -> Iterator[str]:
    """`finished` only where the last attempt says so and the budget was reached; files beside agree with its own."""
    last, said = heads[-1], read_table(folder, "events")
    if status["status"] == "finished":
        if b"finished" not in said["kind"][said["attempt"] == last.attempt]:
            yield f"status.json: finished, but {last.path.name} does not say so"
        updates = read_table(folder, "updates")
        reached, budget = int(np.max(updates["env_steps"], initial=0)), last.config["budget"]["env_steps"]
        if reached < budget:
            yield f"status.json: finished, but {reached} env_steps are less than the budget of {budget}"
    if status.get("attempt", last.attempt) == last.attempt:  # else the next was killed before it had a file
        yield from _beside(folder, last)


def _beside(folder: Path, last: AttemptHead) -> Iterator[str]:
    """What the last attempt's file holds, too."""
    config, provenance = read_json(folder / "config.json"), read_json(folder / "provenance.json")
    if config is None:
        yield "config.json: cannot be read"
    elif config != last.config:
        key = next(iter(differences(last.config, config)), ("a key",))[0]
        yield f"config.json: {key} is not what {last.path.name} holds"
    if provenance != last.provenance:
        yield f"provenance.json: not what {last.path.name} holds"
