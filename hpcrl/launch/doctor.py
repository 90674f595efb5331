"""`hpcrl doctor`: what a run would find here. By itself on a login node, or as a rank of a world inside a job."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.comm.ranks import fit
from hpcrl.comm.signals import SignalFlag
from hpcrl.config import ConfigError, ExitCode, RunConfig, load_object
from hpcrl.launch import findings
from hpcrl.launch.board import Board
from hpcrl.launch.findings import by_node, megabytes
from hpcrl.launch.launcher import find_launcher, mpi_library
from hpcrl.launch.needs import needs
from hpcrl.launch.recipes import load_config
from hpcrl.launch.situation import Situation, look, without_interface
from hpcrl.launch.start import mpi_starts_later
from hpcrl.launch.supervise import leave, supervised
from hpcrl.launch.surroundings import look_around
from hpcrl.launch.threads import threads_per_rank

if TYPE_CHECKING:
    from mpi4py import MPI

_SRUN_ANSWERS_S = 30.0


@dataclass(frozen=True, slots=True)
class Question:
    """What the command line asks."""

    recipe: str | None = None
    """Of the run that is meant, if there is one."""
    overrides: Sequence[str] = ()
    ranks: int | None = None
    as_json: bool = False
    measure: str | None = None
    """In a world: module:function that returns the speeds of a communicator. It loads MPI, which is started before."""
    limit_s: float = 60.0
    """In a world: when all of it must be over."""


def doctor_command(question: Question, flag: SignalFlag) -> int:
    """Print what there is and what is wrong with it; BAD_CONFIGURATION where no run could start.

    Collective over the world, inside one; rank 0 prints. There RANK_FAILED when a rank dies or all is not over within
    the limit. `flag`: where it is installed, SIGTERM ends this rank only after some seconds, in which it may
    refuse by itself.
    """
    situation = look()
    try:
        with mpi_starts_later():
            config = _config(question)
            if situation.launcher == "srun without MPI":
                raise ConfigError(without_interface(situation))
            if not situation.in_world:
                _print(_by_itself(config), question)
                return int(ExitCode.FINISHED)
    except ConfigError as error:
        return _refuse(error, situation)

    def body(board: Board) -> int:
        return _be_a_rank(situation, config, question, board)

    overdue = f"is not at its end after {question.limit_s:g} s (--limit), perhaps because others did not come"
    code = supervised(body, flag, question.limit_s, overdue=overdue)
    return leave(code, all_ranks_leave=code != ExitCode.RANK_FAILED)


def render(result: dict[str, Any]) -> RenderableType:
    """Lay out what the command has found as one screen for rich."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("MPI", result["mpi_library"])
    grid.add_row(
        "launcher",
        f"{result['launcher']}; a world of {len(result['seats'])} as promised"
        if result["launcher"] != "none"
        else "none here: this is one process, not a job",
    )
    for starter in result["starters"]:
        grid.add_row("could start", starter)
    for name, text in [*_recipe_rows(result["recipe"]), *_speed_rows(result["speeds"])]:
        grid.add_row(name, text)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("node", "ranks", "cores", "threads each", "GPUs", "/dev/shm free", "folder", "file system"):
        table.add_column(name)
    for node, of_node in by_node(result["seats"]).items():
        first = of_node[0]
        cores = {core for seat in of_node for core in seat["cores"]}
        ranks = ", ".join(str(seat["rank"]) for seat in of_node)
        free = f"{first['shared_free_bytes'] >> 20} of {first['shared_bytes'] >> 20} MB"
        few = (f"{len(cores)} of {first['cores_of_node']}", str(first["threads"]), str(first["gpus"]))
        table.add_row(node, ranks, *few, free, first["folder"], first["file_system"])
    sentences = [Text(f"- {sentence}", "yellow") for sentence in result["findings"]]
    return Group(
        grid, Text(), table, Text(), *(sentences or [Text("nothing stands against a run here", "green")])
    )


def _config(question: Question) -> RunConfig | None:
    if question.recipe is None:
        return None
    return load_config(question.recipe, question.overrides, question.ranks)


def _refuse(error: ConfigError, situation: Situation) -> int:
    if situation.rank == 0:
        sys.stderr.write(f"hpcrl: {error}\n")
    return leave(int(ExitCode.BAD_CONFIGURATION), all_ranks_leave=True)


def _be_a_rank(
    situation: Situation,
    config: RunConfig | None,
    question: Question,
    board: Board,
) -> int:
    """Look and measure with the others; the exit code. Collective over the world."""
    from hpcrl.launch.inside import measure_rank

    board.identify(role="doctor", role_rank=situation.rank, rank=situation.rank, node=socket.gethostname())
    board.report("waiting for all ranks to start MPI")
    board.begin()
    before = len(os.sched_getaffinity(0))

    def examine(comm: MPI.Intracomm) -> None:
        from mpi4py import MPI

        board.report("MPI has started")
        mine = look_around(situation) | {"node": MPI.Get_processor_name(), "rank": comm.rank}
        seats: list[dict[str, Any]] = comm.allgather(mine | {"cores_before_mpi": before})
        for seat in seats:
            seat["threads"] = threads_per_rank(sum(other["node"] == seat["node"] for other in seats))
        board.report("measuring speeds")
        speeds = load_object(question.measure, "measurement")(comm) if question.measure else {}
        board.report("speeds are measured")
        if comm.rank == 0:  # printed now: whoever dies while MPI ends cannot take it away
            library = MPI.Get_library_version().splitlines()[0]
            _print(_result(situation.launcher, library, seats, config, speeds), question)

    try:
        measure_rank(situation, examine)
    except ConfigError as error:
        board.done()
        if situation.rank == 0 or situation.launcher != "srun":  # there rank 0 leaves first, see `leave`
            sys.stderr.write(f"hpcrl: {error}\n")
        return int(ExitCode.BAD_CONFIGURATION)
    board.done()
    return int(ExitCode.FINISHED)


def _by_itself(config: RunConfig | None) -> dict[str, Any]:
    library = mpi_library()
    starters = [find_launcher(library)]
    if shutil.which("srun"):
        starters.append(_srun("pmix" if "Open MPI" in library else "pmi2"))
    seat = look_around(Situation("none", 0, 1, 1)) | {"threads": threads_per_rank(1)}
    return _result("none", library.splitlines()[0], [seat], config, {}, starters)


def _result(
    launcher: str,
    library: str,
    seats: list[dict[str, Any]],
    config: RunConfig | None,
    speeds: dict[str, Any],
    starters: Sequence[str] = (),
) -> dict[str, Any]:
    found = findings.of_seats(seats) + findings.of_speeds(speeds)
    recipe: list[dict[str, Any]] = []
    if config is not None:
        nodes = [seat["node"] for seat in seats]
        tasks = os.environ.get("SLURM_NTASKS", "")
        try:
            if launcher == "none":  # as if all of the run were here
                fit(config, int(tasks) if tasks.isdigit() else config.world_size)
                nodes = nodes * config.world_size
            else:
                config = fit(config, len(seats))
            recipe = needs(config, nodes)
            found += findings.of_needs(recipe, seats, config.ranks.learner_device)
        except ConfigError as error:
            found.append(f"the run would be refused: {error}")
    return {
        "launcher": launcher,
        "mpi_library": library,
        "starters": list(starters),
        "seats": seats,
        "recipe": recipe,
        "speeds": speeds,
        "findings": found,
    }


def _print(result: dict[str, Any], question: Question) -> None:
    if question.as_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        Console(width=None if sys.stdout.isatty() else 120).print(render(result))
    sys.stdout.flush()


def _recipe_rows(recipe: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    rows = []
    for need in recipe:
        roles = ", ".join(f"{number} {role}{'s' * (number > 1)}" for role, number in need["roles"].items())
        threads = f", {need['env_threads']} threads of environments" if need["env_threads"] else ""
        text = f"{need['node']}: {roles}; {megabytes(need['shared_bytes'])} of shared memory{threads}"
        if need["replay_bytes"]:
            text += f", {megabytes(need['replay_bytes'])} of replay memory"
        rows.append(("recipe", text))
    return rows


def _speed_rows(speeds: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (
            link["kind"],
            f"{', '.join(link['nodes'])}: {1e6 * link['latency_s']:.1f} us, {link['bytes_per_s'] / 1e9:.2f} GB/s",
        )
        for link in speeds.get("links", [])
    ]
    if sums := speeds.get("sums"):
        text = (
            f"{1e3 * sums['hpcrl_s']:.2f} ms; the MPI library's Allreduce {1e3 * sums['allreduce_s']:.2f} ms"
        )
        rows.append((f"sum of {megabytes(sums['bytes'])}", text))
    return rows


def _srun(plugin: str) -> str:
    """Whether Slurm has what the MPI library needs."""
    try:
        done = subprocess.run(
            ["srun", "--mpi=list"], check=True, capture_output=True, text=True, timeout=_SRUN_ANSWERS_S
        )
    except (subprocess.SubprocessError, OSError):
        return "srun is installed, but does not answer here"
    if plugin in (done.stdout + done.stderr).split():
        return f"srun --mpi={plugin}"
    return f"srun has no plugin {plugin}, which this MPI library needs"
