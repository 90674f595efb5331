"""The actor: grant -> policy.fetch -> free slot -> collect (-> algorithm.gradient) -> stream.send."""

from __future__ import annotations

from functools import partial

import numpy as np

from hpcrl.algorithms import make_algorithm
from hpcrl.comm.parameters import Vector
from hpcrl.comm.ranks import Placement
from hpcrl.comm.rows import Bytes
from hpcrl.comm.stream import Tag
from hpcrl.data.trajectory import TrajectoryLayout
from hpcrl.roles.collect import Collector
from hpcrl.roles.cut import MARK
from hpcrl.roles.gradients import Gradients
from hpcrl.roles.session import RoleLoop, Session, drain, take


def run_actor(session: Session, placement: Placement) -> RoleLoop:
    """Step environments until the run stops. Point-to-point with its replay rank and learner 0.

    Without a grant, the granted parameter version or a buffer to write to the actor waits, and the wait is timed;
    nothing is ever overwritten or dropped here.
    """
    config, timers = session.config, session.timers
    algorithm = make_algorithm(config, session.env_spec)
    streams = ActorStreams(session, placement)
    collector = Collector(session, placement, algorithm)
    layout = streams.layout
    gradients = Gradients(session, algorithm) if config.algorithm.sends_gradients else None
    yield True
    while True:
        with timers("grant.wait"):
            grant = yield from take(streams.next_grant, session)
        if grant is None:
            break
        number, granted_version, row, env_steps = grant
        if number == MARK:
            if session.control.stopped:
                break  # the end has come before that cut
            session.cuts.write(granted_version, placement, collector.components())
            yield True
            continue
        with timers("policy.fetch"):
            fetch = partial(streams.fetch, granted_version, exactly=config.deterministic)
            version = yield from take(fetch, session)
            if version is not None:
                algorithm.parameters.bind(streams.vector)
        with timers("slot.wait"):
            slot = yield from take(partial(streams.begin, row), session)
        if version is None or slot is None:
            break
        trajectory = layout.begin(
            slot,
            attempt=session.world.attempt,
            version=version,
            actor=placement.role_rank,
            grant=number,
            envs=collector.envs,
        )
        collected = trajectory if gradients is None else gradients.begin(collector.envs, version)
        stopped = partial(streams.stopped, session)
        if not collector.collect(collected, version, cancelled=stopped, env_steps=env_steps):
            break
        if gradients is not None:
            with timers("algorithm.gradient"):
                gradients.compute(collected, trajectory)
        with timers("stream.send"):
            trajectory.seal(config.comm.checksum)
            streams.send(row)
        session.report(f"trajectory {number} under version {version}")
        yield True
    collector.settle()
    with timers("end.wait"):
        yield from streams.drain(session)
    if session.control.save_at is not None:
        yield from session.cuts.write_last(session.control.save_at, placement, collector.components())
    collector.close()


class ActorStreams:
    """An actor's ends of its streams. Point-to-point, nonblocking."""

    def __init__(self, session: Session, placement: Placement) -> None:
        world, comm = session.world, session.config.comm
        shards = world.plan.ranks("replay")
        shard = shards[placement.role_rank % len(shards)]
        self.layout = TrajectoryLayout(session.trajectory_spec)
        self._trajectories = world.row_sender(shard, Tag.TRAJECTORY, session.arenas.trajectories, comm.slots)
        self._grants = world.receiver(shard, Tag.GRANT)
        if session.parameters.reader is None:
            raise RuntimeError(f"rank {world.rank} reads no parameters")
        self._parameters = session.parameters
        self._reader = session.parameters.reader
        for _ in range(comm.slots + 1):  # and a mark
            self._grants.post(np.zeros(4, np.int64))

    def next_grant(self) -> tuple[int, int, int, int] | None:
        """(number, parameter version, row, env_steps of the run) of the next grant, or (MARK, update of the cut, 0, 0).

        None where there is none.
        """
        self._progress()
        message = self._grants.poll()
        if message is None:
            return None
        number, version, row, env_steps = (int(value) for value in message)
        self._grants.post(message)
        return number, version, row, env_steps

    def fetch(self, at_least: int, *, exactly: bool) -> int | None:
        """The newest version, for use in `vector` until `send`; None while that is below `at_least`."""
        self._progress()
        return self._reader.version if self._reader.acquire(at_least, exactly=exactly) else None

    @property
    def vector(self) -> Vector:
        """float32 [size]: the parameters fetched last, where they lie."""
        return self._reader.vector

    def begin(self, row: int) -> Bytes | None:
        """Where to write the trajectory of `row`, until `send`; None while every buffer is under way."""
        return self._trajectories.begin(row)

    def send(self, row: int) -> None:
        """Give the replay rank its row, filled. The parameters may be overwritten from here on."""
        self._reader.release()  # before: who has the trajectory may rely on it
        self._trajectories.send(row)

    def stopped(self, session: Session) -> bool:
        """Progress between env_steps; whether the run has been stopped."""
        session.control.poll()
        session.poll_records()
        self._progress()
        return session.control.stopped

    def drain(self, session: Session) -> RoleLoop:
        """Close, take in grants and versions still under way, and leave nothing behind."""
        self._reader.release()
        self._trajectories.close()
        yield from drain(
            lambda: self._grants_drained() & self._parameters.drained & self._trajectories.drained,
            session,
        )
        self._grants.cancel()

    def _progress(self) -> None:
        self._trajectories.poll()
        self._parameters.poll()

    def _grants_drained(self) -> bool:
        self.next_grant()
        return self._grants.drained
