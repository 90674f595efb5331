"""What the roles of a rank are given: timers, a session, and who hears of its life."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from hpcrl.comm.clocks import common_time
from hpcrl.comm.control import Control
from hpcrl.comm.publish import ParameterExchange
from hpcrl.comm.signals import SignalFlag
from hpcrl.comm.world import World
from hpcrl.config import RunConfig
from hpcrl.data.specs import EnvSpec, TrajectorySpec
from hpcrl.launch.board import Board
from hpcrl.launch.pulse import Pulse, RollCall, describe_wait
from hpcrl.launch.results import Results
from hpcrl.roles.arenas import open_arenas
from hpcrl.roles.cut import ROLES_WITH_ROWS, Cuts
from hpcrl.roles.records import RecordReceiver, RecordSender
from hpcrl.roles.result_writer import Marks
from hpcrl.roles.session import Session
from hpcrl.roles.timers import Timers
from hpcrl.storage.checkpoint import Saved
from hpcrl.storage.trace import TraceFile, trace_file


def make_timers(world: World, config: RunConfig, board: Board) -> Timers:
    """This rank's, from the start of its process."""
    first = world.placements[0]
    age_s = max(0.0, datetime.now(UTC).timestamp() - board.made)
    return Timers(
        first.role, first.role_rank, begun=time.perf_counter() - age_s, delay_s=config.profile.delay_s
    )


def open_trace(world: World, config: RunConfig, run_dir: Path, timers: Timers) -> None:
    """Have the timers write a trace, if the run is to have one. Collective over the world; blocking."""
    if not config.profile.trace:
        return
    roles = "+".join(f"{one.role} {one.role_rank}" for one in world.placements)
    timers.trace = TraceFile(
        trace_file(run_dir, world.attempt, world.rank),
        rank=world.rank,
        name=f"{roles} on {world.seats[world.rank]['node']}",
        shift_s=common_time(world.comm, timers.begun),
        stop_s=time.perf_counter() + config.profile.trace_s,
        most_bytes=config.profile.trace_bytes,
    )


def make_session(
    world: World,
    config: RunConfig,
    specs: tuple[EnvSpec, TrajectorySpec, int],
    start: tuple[Path, Saved | None],
    results: list[Results],
    flag: SignalFlag,
    board: Board,
    roll: RollCall,
    timers: Timers,
) -> tuple[Session, RecordSender | RecordReceiver]:
    """What the roles of this rank share, and its end of the way of records. Collective over the world."""
    records: RecordSender | RecordReceiver
    control = Control(world, flag)
    if results:
        writer = results[0].writer
        marking = {one.world_rank for one in world.plan.placements if one.role in ROLES_WITH_ROWS}
        marks = Marks(marking, writer.flush, control.send_rows)
        records = RecordReceiver(world, writer.add, roll.take, marks.take)
        record, start_clock = writer.add, writer.start_clock
        receiver = records
        mark_rows: Callable[[int], None] = partial(marks.take, world.rank)

        def poll_records() -> bool:
            marks.poll(writer.poll())
            return receiver.poll()
    else:
        records = RecordSender(world, timers)
        record, start_clock, poll_records = records.add, _no_clock, records.poll
        mark_rows = records.mark
    session = Session(
        world=world,
        config=config,
        env_spec=specs[0],
        trajectory_spec=specs[1],
        arenas=open_arenas(world, specs[0], specs[1]),
        parameters=ParameterExchange(world, specs[2]),
        control=control,
        cuts=Cuts(world, config, control, *start),
        run_dir=start[0],
        record=record,
        poll_records=poll_records,
        start_clock=start_clock,
        report=board.report,
        timers=timers,
    )
    session.cuts.timed = timers
    session.cuts.mark_rows, session.cuts.marks = mark_rows, records.marks
    return session, records


def make_pulse(
    session: Session, records: RecordSender | RecordReceiver, roll: RollCall, board: Board
) -> Pulse:
    """Have this rank's waits and work be told of."""
    world = session.world
    own = world.placements[0]

    def tell(text: str) -> bool:
        if isinstance(records, RecordSender):
            return records.note(text) if text else records.sign()
        roll.take(world.rank, text)
        return True

    def waiting() -> str:
        role = "+".join(placement.role for placement in world.placements)
        details = f"last progress: {board.progress()}; not drained:\n{world.report()}"
        return describe_wait(role, own.role_rank, ", ".join(session.timers.open_hops), details)

    pulse = Pulse(board, tell, session.poll_records, waiting, session.config.faults.stall_timeout_s)
    world.waiter.beat, world.waiter.work = pulse.beat, pulse.work
    return pulse


def _no_clock() -> None:
    """Only the writer has one."""
