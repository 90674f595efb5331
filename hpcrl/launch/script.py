"""The text of a batch script, section by section, as slurm/train.sbatch has it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from hpcrl.config import SiteConfig

END = """\
# --- end ---
case $status in
0 | 1 | 2 | 3 | 4 | 75) ;;
126 | 127) status=2 ;; # the shell's: there is no such command here
138 | 140) status=75 ;; # USR1 or USR2 came before hpcrl could hear it: nothing has begun, or all was saved before
*) status=3 ;; # the launcher's: it killed what was left when a rank had failed
esac
echo "hpcrl ended with exit code $status"
if [ "$status" -eq 75 ]; then
    attempt=$((${SLURM_RESTART_COUNT:-0} + 1))
    job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}}
    job=${job:-${SLURM_JOB_ID:-}}
    if [ -n "$NO_REQUEUE" ]; then
        echo "not requeued: $NO_REQUEUE"
    elif [ "$attempt" -ge "$MAX_ATTEMPTS" ]; then
        echo "not requeued: this was attempt $attempt of at most $MAX_ATTEMPTS; to go on, submit the run again with"
        echo "  --set storage.run_dir=$RUN_DIR"
    elif state=$(squeue --noheader --jobs="$job" --format=%T 2>&1) && [ "${state%%[!A-Z]*}" != RUNNING ]; then
        echo "not requeued: the job is ${state:-gone} already, so Slurm ends or requeues it itself"
    else
        echo "requeueing job $job after attempt $attempt of at most $MAX_ATTEMPTS"
        scontrol requeue "$job" || echo "not requeued: scontrol refused"
    fi
fi
exit "$status"
"""
"""From `status`, the launcher's exit code, to the end of the job. The same in slurm/train.sbatch."""

THREADS = """\
# As many threads per rank as it has cores: more would spin and take cores from the other ranks.
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# Since Slurm 22.05 srun does not take --cpus-per-task over from sbatch.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}"""

UNEVEN = "unset SLURM_NTASKS_PER_NODE # at most so many, to sbatch; srun would take it for the number"
"""Where the ranks do not divide evenly over the nodes."""

FORWARD = """\
# mpiexec passes signals on to the ranks, but Slurm sends this one to the script.
trap 'kill -{signal} "$child" 2> /dev/null' {signal}
"${{RUN[@]}}" &
child=$!
wait "$child"
status=$?
while kill -0 "$child" 2> /dev/null; do # the signal interrupts `wait`
    wait "$child"
    status=$?
done"""


@dataclass(frozen=True, slots=True)
class Component:
    """What one component of a job asks for; most jobs have one."""

    what: str
    ranks: int
    nodes: int
    cpus_per_rank: int
    partition: str | None
    options: tuple[str, ...]

    def in_words(self) -> str:
        """As "3 ranks (...) on 2 nodes"."""
        return f"{many(self.ranks, 'rank')} ({self.what}) on {many(self.nodes, 'node')}"


@dataclass(frozen=True, slots=True)
class Task:
    """One run of a job: the only one, or that of one task of an array."""

    settings: tuple[str, ...]
    """`a.b=value` of what is swept."""
    run_dir: str
    """The same in every attempt. With shell variables; quoted."""


@dataclass(frozen=True, slots=True)
class Script:
    """Everything that differs from script to script."""

    title: str
    name: str
    site: SiteConfig
    time: str
    array: str | None
    folder: str
    log: str
    components: tuple[Component, ...]
    tasks: tuple[Task, ...]
    """By the number of the array's task; without an array the one."""
    run: str
    """The command line of every rank, with $RUN_DIR, in an array also ${SWEPT[@]}; quoted."""
    after: str | None = None
    """Number of the job that must have ended before this one starts."""

    def text(self) -> str:
        """The whole script."""
        sections = [self._head(), "\n".join(self._site()), self._run(), END]
        return "\n\n".join(sections)

    def _head(self) -> str:
        blocks = ["\n".join(self._options(component)) for component in self.components]
        blocks[0] = "\n".join([blocks[0], *self._options_of_the_job()])
        options = "\n#SBATCH hetjob\n".join(blocks)
        return f"#!/usr/bin/env bash\n# {self.title}\n\n{options}"

    def _options_of_the_job(self) -> Iterator[str]:
        yield f"#SBATCH --job-name={self.name}"
        if self.array is not None:
            yield f"#SBATCH --array={self.array}"
        yield f'#SBATCH --chdir="{self.folder}"'
        yield f"#SBATCH --output={self.log}"
        yield "#SBATCH --open-mode=append"
        yield "#SBATCH --no-requeue" if no_requeue(self.site) else "#SBATCH --requeue"
        if self.after is not None:
            yield f"#SBATCH --dependency=afterany:{self.after}"

    def _options(self, component: Component) -> Iterator[str]:
        site = self.site
        for name, value in (("partition", component.partition), ("account", site.account), ("qos", site.qos)):
            if value is not None:
                yield f"#SBATCH --{name}={value}"
        yield f"#SBATCH --nodes={component.nodes}"
        yield f"#SBATCH --ntasks={component.ranks}"
        yield f"#SBATCH --ntasks-per-node={-(-component.ranks // component.nodes)}"
        yield f"#SBATCH --cpus-per-task={component.cpus_per_rank}"
        yield f"#SBATCH --time={self.time}"
        # srun's tasks get the signal from Slurm; mpiexec's from the script
        batch = "B:" if site.launcher == "mpiexec" else ""
        yield f"#SBATCH --signal={batch}{site.signal}@{site.signal_lead_s}"
        for option in component.options:
            yield f"#SBATCH {option}"

    def _site(self) -> Iterator[str]:
        yield "# --- site: modules and environment ---"
        yield from environment_lines(self.site)
        if len(self.components) == 1:
            yield THREADS
            if self.components[0].ranks % self.components[0].nodes:
                yield UNEVEN

    def _choice(self) -> Iterator[str]:
        """Which run this is."""
        if self.array is None:
            yield f"RUN_DIR={self.tasks[0].run_dir}"
            return
        settings = [
            shlex.join(part for one in task.settings for part in ("--set", one)) for task in self.tasks
        ]
        width = max(map(len, settings)) + 1
        yield "# Each task of the array is a run of its own:"
        yield "case ${SLURM_ARRAY_TASK_ID:-} in"
        for number, (task, swept) in enumerate(zip(self.tasks, settings, strict=True)):
            yield f"{number}) SWEPT=({swept + ')':{width}} RUN_DIR={task.run_dir} ;;"
        yield "*)"
        yield '    echo "array task ${SLURM_ARRAY_TASK_ID:-(none)} is not one of these" >&2'
        yield "    exit 2"
        yield "    ;;"
        yield "esac"

    def _run(self) -> str:
        lines = [
            "# --- run ---",
            "set -uo pipefail",
            *requeue_lines(self.site),
            *self._choice(),
            f"RUN=({self.run})",
        ]
        if self.site.launcher == "mpiexec":
            return "\n".join([*lines, FORWARD.format(signal=self.site.signal)])
        srun = ["--kill-on-bad-exit=1", *self.site.launcher_options]
        if self.site.mpi is not None:
            srun.insert(0, f"--mpi={self.site.mpi}")
        options = shlex.join(srun)
        if len(self.components) == 1:
            return "\n".join([*lines, f'srun {options} "${{RUN[@]}}"', "status=$?"])
        parts = [
            f"{options} --het-group={group} --cpus-per-task={component.cpus_per_rank} "
            f'env OMP_NUM_THREADS={component.cpus_per_rank} "${{RUN[@]}}"'
            for group, component in enumerate(self.components)
        ]
        return "\n".join([*lines, "srun " + " : \\\n    ".join(parts), "status=$?"])


def many(number: int, noun: str) -> str:
    """As "1 node", "2 nodes"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def no_requeue(site: SiteConfig) -> str:
    """Why a job never puts itself into the queue again; empty where it does."""
    return "" if site.requeue else "the site profile has requeue = false"


def requeue_lines(site: SiteConfig) -> Iterator[str]:
    """What END asks about another attempt."""
    yield f"NO_REQUEUE={shlex.quote(no_requeue(site))}"
    yield f"MAX_ATTEMPTS={site.max_attempts}"


def environment_lines(site: SiteConfig) -> Iterator[str]:
    """Shell lines that make a node ready: modules, setup, variables. Values are in double quotes, for $NAME."""
    if site.modules:
        yield "module purge"
        yield f"module load {shlex.join(site.modules)}"
    yield from site.setup
    for name, value in site.environment.items():
        yield f"export {name}={_double_quoted(value)}"
    if site.scratch is not None:
        yield f"export TMPDIR={_double_quoted(site.scratch)}"
    if not site.hdf5_locking:
        yield "export HDF5_USE_FILE_LOCKING=FALSE"


def _double_quoted(text: str) -> str:
    for character in '\\"`':
        text = text.replace(character, f"\\{character}")
    return f'"{text}"'
