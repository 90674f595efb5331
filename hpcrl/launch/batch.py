"""A run as a Slurm job: what it asks for, and the script. Pure, but for looking at recipe and profile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrl.config import (
    ComponentConfig,
    ConfigError,
    RunConfig,
    SiteConfig,
    in_words,
    parse_minutes,
    slurm_time,
)
from hpcrl.launch.recipes import load_config
from hpcrl.launch.script import Component, Script, many

_SEEDS = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person may say about a job beside recipe and site; None: as recipe or profile have it."""

    num_ranks: int | None = None
    nodes: int | None = None
    time: str | None = None
    seeds: str | None = None
    """As sbatch --array takes them: 0-4, or 1,5,9, or 0-9%2 for two at a time."""
    heterogeneous: bool = False
    """Learners and replay ranks in one component, actors in another."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job that fits its recipe and its site; made by `plan_job`."""

    recipe: str
    overrides: tuple[str, ...]
    config: RunConfig
    site_name: str
    site: SiteConfig
    wishes: Wishes
    minutes: int
    components: tuple[Component, ...]
    folder: Path
    """Working directory of the job."""
    first: str | None = None
    """Number of the job that began the run, in the later jobs of a chain."""
    previous: str | None = None
    """Number of the job that must have ended before this one starts."""

    @property
    def run_dir(self) -> str:
        """The run directory, the same in every attempt: with the shell's variables of the job in it."""
        storage, name, wishes = self.config.storage, self.config.name, self.wishes
        if storage.run_dir is not None:
            return shlex.quote(storage.run_dir)
        seed = "$SLURM_ARRAY_TASK_ID" if wishes.seeds else str(self.config.seed)
        job = self.first or ("$SLURM_ARRAY_JOB_ID" if wishes.seeds else "$SLURM_JOB_ID")
        return f"{shlex.quote(storage.runs_dir)}/{name}-{seed}-{job}"

    @property
    def log(self) -> str:
        """The log file, with sbatch's patterns in it; one for all jobs of a chain."""
        number, seed = ("%A", "_%a") if self.wishes.seeds else ("%j", "")
        return f"{self.config.name}-{self.first or number}{seed}.log"

    def in_words(self) -> str:
        """Ranks, nodes and time in one line."""
        places = " + ".join(component.in_words() for component in self.components)
        array = f", once for each seed of {self.wishes.seeds}" if self.wishes.seeds else ""
        lead = self.site.signal_lead_s
        return f"{places}, at most {in_words(self.minutes)}, told to stop {lead} s before that{array}"


def plan_job(
    recipe: str, overrides: Sequence[str], site_name: str, site: SiteConfig, wishes: Wishes, folder: Path
) -> BatchJob:
    """Check a recipe against a site. Raises ConfigError with the repair for anything that does not fit."""
    config = load_config(recipe, overrides, wishes.num_ranks)
    minutes = time_limit(wishes.time, site)
    _check_seeds(config, overrides, wishes)
    components = _components(config, site, wishes)
    for component in components:
        if component.nodes > component.ranks:
            raise ConfigError(
                f"{component.nodes} nodes for {component.ranks} ranks ({component.what}): use --nodes "
                f"{component.ranks} or fewer, or more --ranks"
            )
    return BatchJob(recipe, tuple(overrides), config, site_name, site, wishes, minutes, components, folder)


def time_limit(wish: str | None, site: SiteConfig) -> int:
    """Minutes that a job may take. Raises ConfigError where they are over before the run is told to stop."""
    minutes = parse_minutes(wish or site.time)
    if minutes * 60 <= site.signal_lead_s:
        raise ConfigError(
            f"a time limit of {in_words(minutes)} is over before the signal, which the site profile wants "
            f"{site.signal_lead_s} s before the limit (signal_lead_s); use a longer time limit"
        )
    return minutes


def render(job: BatchJob) -> str:
    """The sbatch script."""
    run = [*job.site.command.split(), "run", job.recipe]
    for override in job.overrides:
        run += ["--set", override]
    if job.wishes.num_ranks is not None:
        run += ["--ranks", str(job.wishes.num_ranks)]
    run += ["--resume", "if-exists"]
    seed = ' --set "seed=$SLURM_ARRAY_TASK_ID"' if job.wishes.seeds else ""
    script = Script(
        title=f"{job.config.name} on site {job.site_name}: {job.in_words()}.",
        name=job.config.name,
        site=job.site,
        time=slurm_time(job.minutes),
        array=job.wishes.seeds,
        folder=str(job.folder),
        log=job.log,
        components=job.components,
        run_dir=job.run_dir,
        run=f'{shlex.join(run)}{seed} --set "storage.run_dir=$RUN_DIR"',
        after=job.previous,
    )
    return script.text()


def _check_seeds(config: RunConfig, overrides: Sequence[str], wishes: Wishes) -> None:
    if wishes.seeds is None:
        return
    if not _SEEDS.fullmatch(wishes.seeds):
        raise ConfigError(
            f"--seeds {wishes.seeds!r} is not of a form like 0-4, 1,5,9 or 0-9%2 (two at a time)"
        )
    if config.storage.run_dir is not None:
        raise ConfigError(
            f"storage.run_dir={config.storage.run_dir!r} is one directory for all seeds; name storage.runs_dir"
        )
    if any(override.partition("=")[0].strip() == "seed" for override in overrides):
        raise ConfigError("--set seed=... and --seeds contradict each other; leave one out")
    if wishes.heterogeneous:
        raise ConfigError("Slurm has no arrays of heterogeneous jobs; leave out --seeds or --het")


def _components(config: RunConfig, site: SiteConfig, wishes: Wishes) -> tuple[Component, ...]:
    counts = config.ranks
    nodes = site.nodes if wishes.nodes is None else wishes.nodes
    whole = ComponentConfig(nodes=max(nodes, 1))
    if nodes < 1:
        raise ConfigError(f"--nodes {nodes} is none; use 1 or more")
    if not wishes.heterogeneous:
        if config.scheme == "synchronous":
            return (_component(many(counts.workers, "worker"), counts.workers, site, whole),)
        if wishes.num_ranks == 1:
            return (_component("every role in one process", 1, site, whole),)
        what = f"{many(counts.actors, 'actor')}, {counts.replay} replay, {many(counts.learners, 'learner')}"
        return (_component(what, config.world_size, site, whole),)
    if config.scheme == "synchronous" or wishes.num_ranks == 1:
        raise ConfigError(
            "--het divides actors from learners, and this run has one kind of rank; leave it out"
        )
    if site.launcher != "srun":
        raise ConfigError(
            f"--het needs launcher = 'srun' in the site profile: {site.launcher} sees one component only"
        )
    # The first ranks of the world are the replay and learner ranks, on the first nodes.
    what = f"{counts.replay} replay, {many(counts.learners, 'learner')}"
    first = _component(what, counts.replay + counts.learners, site, site.learners)
    actors = site.actors if wishes.nodes is None else site.actors.with_overrides([f"nodes={nodes}"])
    return first, _component(many(counts.actors, "actor"), counts.actors, site, actors)


def _component(what: str, ranks: int, site: SiteConfig, component: ComponentConfig) -> Component:
    return Component(
        what=what,
        ranks=ranks,
        nodes=component.nodes,
        cpus_per_rank=component.cpus_per_rank or site.cpus_per_rank,
        partition=component.partition or site.partition,
        options=(*site.sbatch, *component.sbatch),
    )
