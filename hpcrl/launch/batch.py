"""A run as a Slurm job: what it asks for, and the script. Pure, but for looking at recipe and profile."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from hpcrl.launch.script import Component, Script, Task, many
from hpcrl.launch.sweep import Combination, combine, parse_sweep


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person may say about a job beside recipe and site; None: as recipe or profile have it."""

    num_ranks: int | None = None
    nodes: int | None = None
    time: str | None = None
    seeds: str | None = None
    """As sbatch --array takes numbers: 0-4, or 1,5,9, or 0-9%2 for two at a time."""
    heterogeneous: bool = False
    """Learners and replay ranks in one component, actors in another."""
    sweep: tuple[str, ...] = ()
    """Values of keys, as a.b=value,value: one run for every combination, and for every seed."""
    at_once: int | None = None
    """Runs of a sweep that Slurm lets run at the same time."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job that fits its recipe and its site; made by `plan_job`."""

    recipe: str
    overrides: tuple[str, ...]
    runs: tuple[Combination, ...]
    """Those of an array, by the number of the task; else the one."""
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
    def config(self) -> RunConfig:
        """Of the first run; all have the same number of ranks."""
        return self.runs[0].config

    @property
    def is_array(self) -> bool:
        """Whether something is swept, be it over one value."""
        return bool(self.runs[0].assignments)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Settings and run directory of each run, with the shell's variables of the job in it."""
        job = self.first or ("$SLURM_ARRAY_JOB_ID" if self.is_array else "$SLURM_JOB_ID")
        return tuple(Task(run.assignments, _run_dir(run, job)) for run in self.runs)

    @property
    def log(self) -> str:
        """The log file, with sbatch's patterns in it; one for all jobs of a chain."""
        number, task = ("%A", "_%a") if self.is_array else ("%j", "")
        return f"{self.config.name}-{self.first or number}{task}.log"

    def in_words(self) -> str:
        """Ranks, nodes and time in one line."""
        places = " + ".join(component.in_words() for component in self.components)
        lead = self.site.signal_lead_s
        return f"{places}, at most {in_words(self.minutes)}, told to stop {lead} s before that{self._array_in_words()}"

    def _array_in_words(self) -> str:
        if not self.is_array:
            return ""
        keys = " x ".join(assignment.partition("=")[0] for assignment in self.runs[0].assignments)
        limit = "" if self.wishes.at_once is None else f", {self.wishes.at_once} at a time"
        return f"; {many(len(self.runs), 'run')} over {keys}{limit}"


def _run_dir(run: Combination, job: str) -> str:
    storage = run.config.storage
    if storage.run_dir is not None:
        return shlex.quote(storage.run_dir)
    return f"{shlex.quote(storage.runs_dir)}/{run.run_name(job)}"


def plan_job(
    recipe: str, overrides: Sequence[str], site_name: str, site: SiteConfig, wishes: Wishes, folder: Path
) -> BatchJob:
    """Check a recipe against a site. Raises ConfigError with the repair for anything that does not fit."""
    axes, at_once = parse_sweep(wishes.sweep, wishes.seeds)
    wishes = replace(wishes, at_once=_at_once(wishes.at_once, at_once, bool(axes)))
    if axes and wishes.heterogeneous:
        raise ConfigError(
            "Slurm has no arrays of heterogeneous jobs; leave out --het, or --sweep and --seeds"
        )
    runs = combine(recipe, overrides, wishes.num_ranks, axes)
    minutes = time_limit(wishes.time, site)
    of_each = (_components(run.config, site, wishes) for run in runs)
    components = tuple(map(_common, zip(*of_each, strict=True)))
    for component in components:
        if component.nodes > component.ranks:
            raise ConfigError(
                f"{component.nodes} nodes for {component.ranks} ranks ({component.what}): use --nodes "
                f"{component.ranks} or fewer, or more --ranks"
            )
    return BatchJob(recipe, tuple(overrides), runs, site_name, site, wishes, minutes, components, folder)


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
    swept = ' "${SWEPT[@]}"' if job.is_array else ""
    limit = "" if job.wishes.at_once is None else f"%{job.wishes.at_once}"
    script = Script(
        title=f"{job.config.name} on site {job.site_name}: {job.in_words()}.",
        name=job.config.name,
        site=job.site,
        time=slurm_time(job.minutes),
        array=f"0-{len(job.runs) - 1}{limit}" if job.is_array else None,
        folder=str(job.folder),
        log=job.log,
        components=job.components,
        tasks=job.tasks,
        run=f'{shlex.join(run)}{swept} --set "storage.run_dir=$RUN_DIR"',
        after=job.previous,
    )
    return script.text()


def _at_once(wish: int | None, of_seeds: int | None, array: bool) -> int | None:
    if wish is not None and of_seeds is not None:
        raise ConfigError(f"--at-once {wish} and --seeds ...%{of_seeds} contradict each other; leave one out")
    at_once = of_seeds if wish is None else wish
    if at_once is not None and (not array or at_once < 1):
        given = f"--seeds ...%{of_seeds}" if wish is None else f"--at-once {wish}"
        raise ConfigError(f"{given}: use 1 or more, with --sweep or --seeds")
    return at_once


def _common(components: Sequence[Component]) -> Component:
    """What all runs ask for: ranks of other roles perhaps, but as many."""
    return replace(components[0], what=" or ".join(dict.fromkeys(one.what for one in components)))


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
