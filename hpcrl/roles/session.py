"""What the roles of one rank share, and the small loop that runs them in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpcrl.comm.control import Control
from hpcrl.comm.publish import ParameterExchange
from hpcrl.comm.ranks import Placement
from hpcrl.comm.world import World
from hpcrl.config import ExitCode, RunConfig
from hpcrl.data.specs import EnvSpec, TrajectorySpec
from hpcrl.roles.arenas import Arenas
from hpcrl.roles.cut import Cuts
from hpcrl.roles.records import table_row
from hpcrl.roles.timers import Timers
from hpcrl.storage.schema import Rows

T = TypeVar("T")

RoleLoop = Generator[bool, None, None]
"""A role: a generator that yields True after progress and False when it can only wait.

It yields for the first time when it has made what it needs, before its first work: from then on it may not stall.
"""


@dataclass(slots=True)
class Session:
    """Shared by the roles of one rank."""

    world: World
    config: RunConfig
    env_spec: EnvSpec
    trajectory_spec: TrajectorySpec
    arenas: Arenas
    parameters: ParameterExchange
    control: Control
    cuts: Cuts
    run_dir: Path
    record: Callable[[str, Rows], None]
    """Hand rows of a table to the writer; never waits."""
    poll_records: Callable[[], bool]
    """Progress of the record streams."""
    start_clock: Callable[[], None]
    """Tell the writer, if it is this rank, that training begins now: zero of every time_s."""
    report: Callable[[str], None]
    """Tell this rank's supervisor how far the rank has come (for the line that names a dead rank)."""
    outcome: dict[str, Any] = field(default_factory=lambda: {"exit_code": ExitCode.FINISHED, "cause": ""})
    """How the run ended, as far as this rank knows."""
    timers: Timers = field(default_factory=Timers)
    """Where this rank's time goes."""

    def fail(self, code: ExitCode, cause: str) -> None:
        """Note an end other than the budget."""
        self.outcome.update(exit_code=code, cause=cause)

    def rng(self, placement: Placement, purpose: str) -> np.random.Generator:
        """A random stream of its own for (run seed, role, role_rank, purpose), and the update the run goes on from.

        A worker has that of an actor: one of either collects the same trajectories.
        """
        role = "actor" if placement.role == "worker" else placement.role
        words = [int.from_bytes(text.encode()[:8], "little") for text in (role, purpose)]
        resumed = [self.cuts.first_update] if self.cuts.saved is not None else []
        entropy = [self.config.seed, placement.role_rank, *words, *resumed]
        return np.random.default_rng(np.random.SeedSequence(entropy))


def take(poll: Callable[[], T | None], session: Session) -> Generator[bool, None, T | None]:
    """Yield False until `poll()` gives something, then return it; return None when the run stops first."""
    while (value := poll()) is None:
        session.control.poll()
        if session.control.stopped:
            return None
        yield False
    return value


class StillInFlight(TimeoutError):
    """The run has stopped, but something that was under way does not arrive."""


def drain(ready: Callable[[], bool], session: Session) -> RoleLoop:
    """Yield until `ready()`; for the end of a role, when everybody is draining.

    Raises StillInFlight, with the state of this rank's streams, after comm.drain_timeout_s.
    """
    limit = session.config.comm.drain_timeout_s
    deadline = time.perf_counter() + limit
    while not ready():
        if time.perf_counter() > deadline:
            raise StillInFlight(
                f"rank {session.world.rank} has waited for {limit:g} s (comm.drain_timeout_s) since the stop; "
                f"not drained:\n{session.world.report()}"
            )
        yield False


def run_roles(loops: list[RoleLoop], session: Session) -> None:
    """Run the roles of this rank in turn until all have returned. Local; idles politely when none progresses."""
    waiter, failures = session.world.waiter, session.world.failures
    while loops:
        progress = failures is not None and failures.poll()
        for loop in list(loops):
            session.control.poll()
            try:
                progress |= next(loop)
            except StopIteration:
                loops.remove(loop)
                progress = True
        if session.timers.due:
            session.record("timers", session.timers.rows())
        progress |= session.poll_records()
        if progress:
            waiter.reset()
        else:
            waiter.idle()


def record_event(session: Session, placement: Placement, kind: str, text: str, count: int = 1) -> None:
    """Hand a fault, drop or interruption to the writer. `placement`: whom it befell."""
    row = table_row(
        "events",
        kind=kind,
        role=placement.role,
        role_rank=placement.role_rank,
        world_rank=placement.world_rank,
        count=count,
        text=text,
    )
    session.record("events", row)
