"""Checkpoints: one file from every rank under one update's number, whole and verified, or not there at all.

`checkpoints/UPDATE/` holds a part of each role (`learner-0.h5`, `actor-2.h5`, ...) and `manifest.json`, which names the
parts with their hashes. `checkpoints/best` leads to the set of the best training return. Large arrays of a part lie
beside it, in blocks, which are written only where they differ from those of the set before (`hpcrl.storage.blocks`).

All is written in a folder aside: each rank writes its part (`write_part`) and tells the root its hash; when all have,
the root writes the manifest and renames the folder (`complete`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from hpcrl.storage.blocks import check_blocks
from hpcrl.storage.components import COMPONENTS
from hpcrl.storage.files import SEAL, read_json, seal_is_broken, sealed, sha256, sync
from hpcrl.storage.parts import Given, Values, block_digests, read_component, write_component
from hpcrl.storage.writing import new_file

_FORMAT, _UNSEALED = 3, 2
"""Of what is written; and of before, when a manifest had no hash of its own."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_MANIFEST = "manifest.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint whose files all matched their hashes."""

    path: Path
    update: int
    meta: dict[str, Any]
    parts: tuple[str, ...]
    """Names of the parts, e.g. learner-0."""

    def of_role(self, role: str) -> list[str]:
        """Parts of a role, by role_rank."""
        mine = [part for part in self.parts if part.rpartition("-")[0] == role]
        return sorted(mine, key=lambda part: int(part.rpartition("-")[2]))

    def restore(self, part: str, component: str, load: Callable[[Values], None]) -> None:
        """Hand a component to `load`. Raises ValueError when it is missing or of another version. Local.

        Nothing that is read can run code.
        """
        with h5py.File(self.path / f"{part}.h5", "r", locking=False) as file:
            if component not in file:
                raise ValueError(f"{self.path / part}.h5 has no component {component!r}")
            version = int(file[component].attrs["version"])
            if version != COMPONENTS[component].version:
                raise ValueError(
                    f"component {component!r} of {self.path} has version {version}; this hpcrl reads "
                    f"{COMPONENTS[component].version}"
                )
            values = read_component(file[component], _blocks(self.path, part))
        load(values)


def write_part(
    run_dir: Path, update: int, part: str, components: Mapping[str, Given], *, aside: bool = True
) -> str:
    """Write a rank's part of the set of `update` aside; the SHA-256 of its file. Local.

    Raises ValueError for a value or name that cannot be stored, OSError when the disk refuses; sets that are complete
    are untouched in both cases. `aside`: False writes under the final names at once (faults.without=atomic-rename).
    """
    if update < 0:
        raise ValueError(f"update={update} must be at least 0")
    if not _NAME.fullmatch(part):
        raise ValueError(f"part name {part!r}: use letters, digits, '.', '_' and '-'")
    reached("part begun")
    folder = _folder(run_dir, update, aside=aside)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{part}.h5"
    being_written = folder / f".{part}.h5.tmp" if aside else path
    own, sets = _blocks(folder, part), [one for one in find_sets(run_dir) if one != folder]
    shutil.rmtree(own, ignore_errors=True)  # of a save of this update that never ended
    before = _blocks(sets[0], part) if sets else None
    with new_file(being_written) as file:
        for name, values in components.items():
            if name not in COMPONENTS:
                raise ValueError(f"component {name!r} is not one of {', '.join(COMPONENTS)}")
            group = file.create_group(name)
            group.attrs["version"] = COMPONENTS[name].version
            write_component(group, f"{part}/{name}", values, own, before)
    reached("part written")
    if own.is_dir():
        sync(own)
    sync(being_written)
    found = sha256(being_written)
    being_written.rename(path)
    sync(folder)
    reached("part renamed")
    return found


def complete(
    run_dir: Path,
    update: int,
    hashes: Mapping[str, str],
    *,
    meta: Mapping[str, Any],
    keep: int = 2,
    keep_best: int = 0,
    aside: bool = True,
) -> Path:
    """Make the parts that were written aside the checkpoint of `update`; only the root, after all of them. Local.

    hashes: part -> SHA-256. A set of the same update is replaced; of the others up to this update the newest `keep`
    stay, this one counted, and the `keep_best` of highest meta["score"]. The link `best` leads to the first of these.
    `aside`: as for `write_part`. Returns the checkpoint's folder. Raises FileNotFoundError when a part is not there.
    """
    if keep < 1 or keep_best < 0:
        raise ValueError(f"keep={keep} must be at least 1 and keep_best={keep_best} at least 0")
    reached("all parts there")
    base, folder = run_dir / "checkpoints", _folder(run_dir, update, aside=aside)
    for part in hashes:
        if not (folder / f"{part}.h5").is_file():
            raise FileNotFoundError(f"{folder / part}.h5 was written, but is not there")
    files = {f"{part}.h5": value for part, value in sorted(hashes.items())}
    manifest = sealed({"format": _FORMAT, "update": update, "sha256": files, "meta": dict(meta)})
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    sync(folder / _MANIFEST)
    sync(folder)
    reached("manifest written")
    final = base / f"{update:012d}"
    if aside:
        _discard(final)
        folder.rename(final)
    sync(base)
    reached("set renamed")
    best = by_score(run_dir)[:keep_best]
    _link_best(base, best)
    reached("best set marked")
    for old in [path for path in find_sets(run_dir) if path.name <= final.name][keep:]:
        if int(old.name) not in dict(best):
            _discard(old)
    remove_leftovers(run_dir)
    reached("old sets removed")
    return final


def give_up(run_dir: Path, update: int, *, aside: bool = True) -> None:
    """Remove the parts of a set that cannot be completed, as far as the disk lets us; after all ranks wrote. Local."""
    shutil.rmtree(_folder(run_dir, update, aside=aside), ignore_errors=True)


def newest(run_dir: Path, *, compare: bool = True) -> Saved:
    """The newest checkpoint whose files all match their hashes. Local.

    Damaged sets are passed over with a warning that names the damaged file; sets are never mixed. Raises
    FileNotFoundError when there is no checkpoint, ValueError when all are damaged. `compare`: False takes files as they
    are, hash or no hash (faults.without=checkpoint-hashes).
    """
    base = Path(run_dir) / "checkpoints"
    sets = find_sets(run_dir)
    if not sets:
        raise FileNotFoundError(f"no checkpoint in {base}")
    faults = []
    for path in sets:
        try:
            return verify(path, compare=compare)
        except (ValueError, OSError) as error:
            _log.warning("checkpoint passed over: %s", error)
            faults.append(str(error))
    raise ValueError(f"every checkpoint in {base} is damaged: {'; '.join(faults)}")


def by_score(run_dir: Path) -> list[tuple[int, float]]:
    """(update, score) of the sets that have one, best first; of equal ones the newer. Nothing is verified. Local."""
    found = []
    for path in find_sets(run_dir):
        score = ((read_json(path / _MANIFEST) or {}).get("meta") or {}).get("score")
        if isinstance(score, (int, float)) and math.isfinite(score):
            found.append((int(path.name), float(score)))
    return sorted(found, key=lambda one: (one[1], one[0]), reverse=True)


def remove_leftovers(run_dir: Path) -> None:
    """Remove what a save that never ended has left; only while no rank is saving. Local."""
    for path in (Path(run_dir) / "checkpoints").glob(".tmp-*"):
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)


def set_aside_newer(run_dir: Path, update: int) -> list[Path]:
    """Rename sets above `update`, which were found damaged, to damaged-*: they will be saved anew. Local."""
    moved = []
    for path in find_sets(run_dir):
        if int(path.name) > update:
            numbers = (path.with_name(f"damaged-{path.name}-{number}") for number in range(1, 10**6))
            moved.append(path.rename(next(name for name in numbers if not name.exists())))
    return moved


def reached(step: str) -> None:
    """A step of saving is done. Nothing happens here; tests end the process at each."""


def find_sets(run_dir: Path) -> list[Path]:
    """Checkpoints under their final names, newest first; nothing is verified. Local."""
    base = Path(run_dir) / "checkpoints"
    if not base.is_dir():
        return []
    return sorted((path for path in base.iterdir() if path.name.isdigit() and path.is_dir()), reverse=True)


def verify(path: Path, *, compare: bool = True) -> Saved:
    """The checkpoint in this folder. Raises ValueError that names what is missing or, if compared, damaged."""
    manifest = read_json(path / _MANIFEST)
    if manifest is None or not {"format", "update", "sha256", "meta"} <= manifest.keys():
        raise ValueError(f"{path / _MANIFEST} is missing or not a manifest")
    if manifest["format"] not in (_FORMAT, _UNSEALED):
        raise ValueError(f"{path} has checkpoint format {manifest['format']}; this version reads {_FORMAT}")
    if manifest["update"] != int(path.name):
        raise ValueError(f"{path / _MANIFEST} belongs to update {manifest['update']}")
    old = manifest["format"] == _UNSEALED and SEAL not in manifest
    if compare and not old and seal_is_broken(manifest):
        raise ValueError(f"{path / _MANIFEST} does not match its own hash")
    for name, expected in manifest["sha256"].items():
        if not (path / name).is_file():
            raise ValueError(f"{path / name} is missing")
        if compare and sha256(path / name) != expected:
            raise ValueError(f"{path / name} does not match the hash in its manifest")
        if not compare:
            continue
        with h5py.File(path / name, "r", locking=False) as file:
            for digests in block_digests(file):
                check_blocks(_blocks(path, name.removesuffix(".h5")), digests)
    parts = tuple(name.removesuffix(".h5") for name in manifest["sha256"])
    return Saved(path, manifest["update"], manifest["meta"], parts)


def _folder(run_dir: Path, update: int, *, aside: bool) -> Path:
    return Path(run_dir) / "checkpoints" / f"{'.tmp-' if aside else ''}{update:012d}"


def _blocks(folder: Path, part: str) -> Path:
    return folder / f"{part}.blocks"


def _link_best(base: Path, best: Sequence[tuple[int, float]]) -> None:
    """Have `best` lead to the first set, whole at any time; no such link where there is none."""
    link = base / "best"
    if link.is_dir() and not link.is_symlink():  # somebody's copy of the run followed the link
        _discard(link)
    if not best:
        link.unlink(missing_ok=True)
        return
    aside = base / ".tmp-best"
    aside.unlink(missing_ok=True)
    aside.symlink_to(f"{best[0][0]:012d}")
    aside.rename(link)
    sync(base)


def _discard(path: Path) -> None:
    """Remove a checkpoint, if it is there, so that no part of it is ever seen under its name."""
    if path.exists():
        aside = path.with_name(f".tmp-old-{path.name}-{os.getpid()}")
        path.rename(aside)
        shutil.rmtree(aside)
