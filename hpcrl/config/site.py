"""What a cluster asks of its jobs: one TOML file per site, the same for every recipe. Loads neither torch nor MPI."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from hpcrl.config.base import Config, ConfigError
from hpcrl.config.time_limit import parse_minutes

_REPOSITORY = Path(__file__).parents[2] / "slurm"


class ComponentConfig(Config):
    """What one component of a heterogeneous job asks for beside or instead of what the site says."""

    partition: str | None = None
    """Instead of the site's."""
    nodes: int = Field(1, ge=1)
    """Nodes of this component."""
    cpus_per_rank: int | None = Field(None, ge=1)
    """Instead of the site's."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch, as "--gres=gpu:1", after the site's."""


class SiteConfig(Config):
    """One cluster, or one way of using it."""

    partition: str | None = None
    """sbatch --partition; null: the cluster's default."""
    account: str | None = None
    """sbatch --account."""
    qos: str | None = None
    """sbatch --qos."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch, as "--constraint=icelake"."""
    time: str = "01:00:00"
    """Time limit where the command line gives none, in Slurm's forms."""
    nodes: int = Field(1, ge=1)
    """Nodes where the command line gives no number."""
    cpus_per_rank: int = Field(1, ge=1)
    """Cores of each rank: its compute threads, and those of its environments."""
    modules: tuple[str, ...] = ()
    """Loaded after `module purge`; nothing is purged where there are none."""
    setup: tuple[str, ...] = ()
    """Shell lines before the run, as "source $HOME/venvs/hpcrl/bin/activate"."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of every rank; "$NAME" in them is expanded when the job starts."""
    command: str = "hpcrl"
    """How hpcrl is called on the nodes."""
    launcher: Literal["srun", "mpiexec"] = "srun"
    """Who starts the ranks: Slurm, or the mpiexec that belongs to mpi4py's MPI, where Slurm does not know that MPI."""
    mpi: str | None = "pmi2"
    """srun --mpi: pmi2 for MPICH, pmix for Open MPI (`srun --mpi=list`); null: the cluster's default."""
    launcher_options: tuple[str, ...] = ()
    """Further options of srun."""
    signal: Literal["USR1", "USR2", "TERM"] = "USR1"
    """Sent to all ranks before the time limit."""
    signal_lead_s: int = Field(120, ge=1, le=65535)
    """Seconds before the limit at which it is sent; must be enough to finish an update and save."""
    requeue: bool = True
    """Whether a job that stopped cleanly before its budget may put itself into the queue again."""
    max_attempts: int = Field(10, ge=1)
    """Most times that one job is started."""
    scratch: str | None = None
    """Folder on each node for temporary files (TMPDIR); "$NAME" in it is expanded when the job starts."""
    hdf5_locking: bool = True
    """HDF5's file locks; false where the shared file system has none."""
    learners: ComponentConfig = ComponentConfig()
    """Heterogeneous jobs: where learners and replay ranks go."""
    actors: ComponentConfig = ComponentConfig()
    """Heterogeneous jobs: where actors go."""

    @field_validator("time")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        parse_minutes(value)
        return value

    @field_validator("sbatch", "launcher_options")
    @classmethod
    def _are_options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for option in value:
            if not option.startswith("-") or "\n" in option:
                raise ValueError(
                    f"{option!r} is not an option; write it as on a command line, like --name=value"
                )
        return value


def load_site(name: str) -> SiteConfig:
    """The profile that `name` names: a path to a .toml file, or NAME for slurm/NAME.toml.

    That folder is looked for here, then beside the package. Raises ConfigError that lists what there is.
    """
    path = Path(name)
    if path.suffix != ".toml":
        path = _find(name)
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"site profile {str(path)!r} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"site profile {str(path)!r} is not valid TOML: {error}") from error
    try:
        return SiteConfig.parse(values)
    except ConfigError as error:
        raise ConfigError(f"site profile {str(path)!r}: {error}") from None


def _find(name: str) -> Path:
    folders = list(dict.fromkeys([Path.cwd() / "slurm", _REPOSITORY]))
    for folder in folders:
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    there = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    near = difflib.get_close_matches(name, there, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    raise ConfigError(
        f"no site {name!r}{hint} Sites: {', '.join(there) or 'none'} (files NAME.toml in "
        f"{' and '.join(map(str, folders))}); or name a .toml file"
    )
