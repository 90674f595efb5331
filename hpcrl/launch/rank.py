"""A run on this rank: world, specs, results, roles, drain, end."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.logging import RichHandler

from hpcrl.comm.devices import Kind, agree_on_devices
from hpcrl.comm.ranks import fit, share
from hpcrl.comm.signals import SignalFlag
from hpcrl.comm.wait import sharpen_timers
from hpcrl.comm.world import World, open_world
from hpcrl.config import ConfigError, ExitCode, RunConfig
from hpcrl.data.specs import EnvSpec, TrajectorySpec, gradient_spec
from hpcrl.launch.board import Board
from hpcrl.launch.equipment import make_pulse, make_session, make_timers, open_trace
from hpcrl.launch.memory import refusal
from hpcrl.launch.pulse import Pulse, RollCall
from hpcrl.launch.results import Results, edge_rows
from hpcrl.launch.threads import set_torch_threads
from hpcrl.roles.records import RecordReceiver, RecordSender
from hpcrl.roles.session import RoleLoop, Session, run_roles
from hpcrl.storage.checkpoint import Saved
from hpcrl.storage.resume import ResumeMode

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


class Refused(Exception):
    """A configuration that turned out wrong after MPI had started; all ranks raise it together."""


def play(
    comm_world: MPI.Intracomm,
    config: RunConfig,
    environment: dict[str, Any],
    board: Board,
    flag: SignalFlag,
    resume: ResumeMode = "never",
) -> int:
    """Run this rank's roles to the end; the exit code, the same on all ranks. Collective over `comm_world`."""
    sharpen_timers()
    try:
        config = fit(config, comm_world.size)
    except ConfigError as error:
        raise Refused(str(error)) from error
    board.enter("opening the world of all ranks, to which each must come", together=True)
    world = open_world(comm_world, config, environment["threads_per_rank"])
    try:
        device = agree_on_devices(world, config.ranks.learner_device)
    except ConfigError as error:
        raise Refused(str(error)) from error
    who = _identify(world, board)
    timers = make_timers(world, config, board)
    _set_up_logging(config, world, who)
    if {placement.role for placement in world.placements} != {"replay"}:
        set_torch_threads(environment["threads_per_rank"])
    specs_rank = (world.plan.ranks("actor") or world.plan.ranks("worker"))[0]
    specs = _agree(
        world, specs_rank, lambda: make_specs(config, device), "making an environment for its spaces", board
    )
    _refuse_large_memory(world, config, specs[1])
    results: list[Results] = []

    def open_results() -> tuple[Path, int, Saved | None]:
        results.append(Results(world, config, environment, resume, timers))
        return results[0].run_dir, results[0].attempt, results[0].saved

    run_dir, world.attempt, saved = _agree(
        world, world.plan.writer, open_results, "opening the run directory", board
    )
    board.identify(**who, run_dir=str(run_dir.absolute()))
    board.enter("opening streams, for which every rank must come", together=True)
    end_time = world.comm.bcast(environment["allocation_end"], 0)
    roll = RollCall(board, range(world.comm.size), lambda: world.failures.dead if world.failures else set())
    open_trace(world, config, run_dir, timers)
    session, records = make_session(
        world, config, specs, (run_dir, saved), results, flag, board, roll, timers
    )
    pulse = make_pulse(session, records, roll, board)
    session.cuts.stop_before(end_time, board.made)
    if results:
        session.cuts.score = results[0].score
    if world.failures is not None:
        # all ranks are here, and need nothing of each other that a death ends
        world.failures.agree(0, config.faults.start_timeout_s or math.inf)
        board.identify(**who, run_dir=str(run_dir.absolute()), mortal=world.rank in world.failures.mortal)
    board.enter("making what its roles need (environments, networks, what was saved)")
    loops = [_role_loop(session, placement) for placement in world.placements]
    run_roles([*loops, _start_ends(pulse, session)], session)
    _record_last(session)
    _end_streams(session, records, pulse)
    code = _end(world, session, results)
    world.meet()
    world.close()
    return code


def _end(world: World, session: Session, results: list[Results]) -> int:
    """The exit code of the run, after its last words. Collective over the world."""
    code = world.worst_exit_code(int(session.outcome["exit_code"]))
    causes = world.gather(session.outcome["cause"])
    if results:
        cause = next((cause for cause in causes if cause), "")
        results[0].finish(code, cause)
        if code in (ExitCode.BAD_CONFIGURATION, ExitCode.RANK_FAILED):
            sys.stderr.write(f"hpcrl: {cause}\n")
    return code


def _record_last(session: Session) -> None:
    """What this rank has sent and where its time went; no role has anything more to do."""
    slots_s = session.timers("slot.wait").seconds  # of an actor, which has one stream of them
    session.timers.begin("end.wait")
    session.record("edges", edge_rows(session.world, {"trajectory": slots_s}))
    session.record("timers", session.timers.rows())


def _end_streams(session: Session, records: RecordSender | RecordReceiver, pulse: Pulse) -> None:
    """Take in what is under way of control and records, and then the rest of a trace to its file."""
    session.control.close()
    run_roles([_last_streams(session, records)], session)
    session.control.cancel()
    pulse.end()
    session.timers.end()
    session.timers.end_trace()
    if isinstance(records, RecordReceiver):
        records.close()


def _start_ends(pulse: Pulse, session: Session) -> RoleLoop:
    """The last in the first round: by then every role of this rank has made what it needs, however long that took."""
    pulse.begin()
    session.cuts.started()
    yield True


def _last_streams(session: Session, records: RecordSender | RecordReceiver) -> RoleLoop:
    """Until control and records have ended: after learner 0's evaluation, however long that takes."""
    while not session.control.drained & records.drained:
        yield False


def _identify(world: World, board: Board) -> dict[str, Any]:
    roles = world.placements
    who = {
        "role": "+".join(placement.role for placement in roles),
        "role_rank": roles[0].role_rank,
        "rank": world.rank,
        "node": world.seats[world.rank]["node"],
    }
    board.identify(**who)
    return who


def _set_up_logging(config: RunConfig, world: World, who: dict[str, Any]) -> None:
    level = config.log.level if world.rank == world.plan.writer else "warning"
    prefix = f"r{world.rank:03d}/{world.comm.size:03d} {who['role']}.{who['role_rank']} {who['node']}"
    handler = RichHandler(console=Console(stderr=True), show_path=False, markup=False)
    handler.setFormatter(logging.Formatter(f"{prefix} %(message)s"))
    logger = logging.getLogger("hpcrl")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())


def _agree(world: World, root: int, make: Callable[[], T], what: str, board: Board) -> T:
    """What `make` gives on `root`, on every rank. Collective over the world; pickled, at start-up only.

    Raises Refused on every rank when it raised ConfigError on the root.
    """
    refusal, value = "", None
    if world.rank != root:
        board.enter(f"waiting for rank {root}, which was {what}", together=True)
    else:
        board.enter(what)
        try:
            value = make()
        except ConfigError as error:
            refusal = str(error)
    world.come_together()
    answer: tuple[str, T | None] = world.comm.bcast((refusal, value), root)
    if answer[1] is None:
        raise Refused(answer[0])
    return answer[1]


def _refuse_large_memory(world: World, config: RunConfig, spec: TrajectorySpec) -> None:
    """Raise Refused, on all ranks, where replay memories would not fit a node. Collective over the world."""
    nodes, here = [seat["node"] for seat in world.seats], world.seats[world.rank]["node"]
    said = [one for one in world.comm.allgather(refusal(config, world.plan, nodes, here, spec)) if one]
    if said:
        raise Refused(said[0])


def make_specs(config: RunConfig, device: Kind) -> tuple[EnvSpec, TrajectorySpec, int]:
    """Of environments and of what actors send, and the number of parameters."""
    from hpcrl.algorithms import make_algorithm, refuse_unknown_exploration, stored_spec
    from hpcrl.envs import make_env_spec

    env = make_env_spec(config.env)
    algorithm = make_algorithm(
        config, env
    )  # now, so that a network that does not fit is refused before anything is made
    if device not in algorithm.devices:
        raise ConfigError(
            f"algorithm.name={config.algorithm.name} does not run on {device}; use ranks.learner_device=cpu"
        )
    refuse_unknown_exploration(config, algorithm)
    columns = len(share(config.env.num_envs, config.num_acting_ranks, 0))
    layout = stored_spec(config, env, algorithm, columns)
    if config.algorithm.sends_gradients:
        layout = gradient_spec(algorithm.gradient_fields)
    return env, layout, algorithm.parameters.size


def _role_loop(session: Session, placement: Any) -> RoleLoop:
    """Start a role; what it needs is imported here, so that a replay rank never loads torch."""
    if placement.role == "actor":
        from hpcrl.roles.actor import run_actor as role
    elif placement.role == "replay":
        from hpcrl.roles.replay import run_replay as role
    elif placement.role == "learner":
        from hpcrl.roles.learner import run_learner as role
    else:
        from hpcrl.roles.synchronous import run_worker as role
    return session.timers.run(placement.role, placement.role_rank, role(session, placement))
