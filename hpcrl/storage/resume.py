"""Going on with a run that ended early: whether there is one, what of its configuration may change, what is loaded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcrl.config import ConfigError, OffPolicyConfig, RunConfig
from hpcrl.storage import checkpoint
from hpcrl.storage.files import read_json
from hpcrl.storage.rundir import RunDirectory, check_free, check_owner, read_status

ResumeMode = Literal["never", "if-exists", "must"]
"""never: a run directory that holds a run is refused; if-exists: go on with it, else begin; must: refuse to begin."""

FIXED = (
    *("scheme", "seed", "env", "model", "algorithm.name", "algorithm.normalize_returns", "lag.injection"),
    *("replay.frame_stack", "replay.eviction"),
)
"""Keys that make a run what it is: a resumed one cannot change them."""
_FREE = ("env.num_groups", "env.num_threads", "env.vectorization")
"""Below FIXED, but only about how the environments are stepped."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """What the writer rank found: where the run lives and what it goes on from."""

    directory: RunDirectory
    saved: checkpoint.Saved | None
    """None: from the beginning."""
    notes: tuple[str, ...] = ()
    """What a person and the events of the run should know."""


def has_run(config: RunConfig) -> bool:
    """Whether `storage.run_dir` names a directory that holds a run."""
    return config.storage.run_dir is not None and (Path(config.storage.run_dir) / "config.json").exists()


def check_start(config: RunConfig, mode: ResumeMode) -> None:
    """Raise ConfigError when `open_run` would refuse; makes nothing, so it may run before MPI."""
    if mode == "never":
        check_free(config)
        return
    if config.storage.run_dir is None:
        raise ConfigError(
            f"--resume {mode} needs to know the run: give its directory as RECIPE, or set storage.run_dir"
        )
    if not has_run(config):
        if mode == "must":
            raise ConfigError(f"--resume must: storage.run_dir={config.storage.run_dir!r} holds no run")
        check_free(config)
        return
    check_owner(config)
    refuse_changes(Path(config.storage.run_dir), config)


def finished(config: RunConfig, mode: ResumeMode) -> str:
    """The sentence for a run that has nothing left to do under this budget; empty when there is work. Local.

    Raises ConfigError where that is not this run: for changes that a resumed run cannot have.
    """
    if mode == "never" or not has_run(config):
        return ""
    path = Path(str(config.storage.run_dir))
    status = read_status(path)
    done, budget = int(status.get("env_steps") or 0), config.budget.env_steps
    if status["status"] != "finished" or done < budget:
        return ""
    refuse_changes(path, config)
    return (
        f"{path} has finished: {done:,} env_steps of a budget of {budget:,}; raise budget.env_steps to go on"
    )


def open_run(config: RunConfig, mode: ResumeMode) -> Start:
    """Make the run directory or go on in it, and find what to load; on the writer rank only. Local.

    Raises ConfigError when the directory is not to be had, a change is refused, or (`must`) nothing can be loaded.
    """
    if mode == "never" or not has_run(config):
        check_start(config, mode)
        return Start(RunDirectory.create(config), None)
    path = Path(str(config.storage.run_dir))
    changes = refuse_changes(path, config)
    directory = RunDirectory.resume(config)
    checkpoint.remove_leftovers(path)
    notes = [f"{key}: {old!r} -> {new!r}" for key, old, new in changes]
    saved = _newest(config, mode, directory)
    if saved is None:
        notes.append("no checkpoint yet: the run begins again at update 0")
    else:
        moved = checkpoint.set_aside_newer(path, saved.update)
        notes += [f"checkpoint {one.name}, which is damaged, was put aside" for one in moved]
        notes.append(f"resumed at update {saved.update} from {saved.path}")
    return Start(directory, saved, tuple(notes))


def refuse_changes(run_dir: Path, config: RunConfig) -> list[tuple[str, Any, Any]]:
    """(key, old, new) of everything that changed since the last attempt. Raises ConfigError for what cannot."""
    before = read_json(run_dir / "config.json")
    if before is None:
        raise ConfigError(f"{run_dir / 'config.json'} cannot be read: what the run was is not known")
    places = ("storage.run_dir", "storage.runs_dir")  # the run is where it is
    changes = [one for one in differences(_completed(before), config.to_dict()) if one[0] not in places]
    fixed = _fixed(config)
    wrong = [change for change in changes if _is_fixed(change[0], fixed)]
    if wrong:
        lines = "\n".join(f"  {key}: {old!r} -> {new!r}" for key, old, new in wrong)
        raise ConfigError(
            f"{run_dir} cannot be resumed with another {', '.join(fixed)}; changed since then:\n{lines}\n"
            "Undo these, or begin a new run with another storage.run_dir"
        )
    return changes


def _completed(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the defaults of the keys that were not there yet when it was written."""
    try:
        return RunConfig.parse(values).to_dict()
    except ConfigError:  # of another version altogether: as it is
        return values


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) wherever two configurations differ; None where there is no value. Pure."""
    found: list[tuple[str, Any, Any]] = []
    for key in dict.fromkeys([*old, *new]):
        one, other = old.get(key), new.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += differences(one, other, f"{prefix}{key}.")
        elif one != other:
            found.append((f"{prefix}{key}", one, other))
    return found


def _fixed(config: RunConfig) -> tuple[str, ...]:
    """Keys that cannot change; where sequences are sampled, they begin where the trajectories in the memory do."""
    algorithm = config.algorithm
    sequences = isinstance(algorithm, OffPolicyConfig) and algorithm.sequence_steps > 0
    return (*FIXED, "algorithm.unroll_length") if sequences else FIXED


def _is_fixed(key: str, fixed: tuple[str, ...]) -> bool:
    below = any(key == one or key.startswith(f"{one}.") for one in fixed)
    return below and key not in _FREE


def _newest(config: RunConfig, mode: ResumeMode, directory: RunDirectory) -> checkpoint.Saved | None:
    try:
        return checkpoint.newest(directory.path, compare=config.faults.has("checkpoint-hashes"))
    except FileNotFoundError as error:
        if mode == "if-exists":
            return None
        directory.close()
        raise ConfigError(f"--resume must: {error}; --resume if-exists would begin again") from error
    except ValueError as error:
        directory.close()
        raise ConfigError(f"{error}; move the folder away to begin again") from error
