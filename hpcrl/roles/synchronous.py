"""The synchronous scheme: every rank acts and learns, in step."""

from __future__ import annotations

from collections import deque

from hpcrl.algorithms import make_algorithm
from hpcrl.comm.ranks import Placement
from hpcrl.data.trajectory import Bytes, TrajectoryLayout
from hpcrl.roles.collect import Collector
from hpcrl.roles.cut import part_name
from hpcrl.roles.learning import Learning
from hpcrl.roles.queue_state import QueueState
from hpcrl.roles.session import RoleLoop, Session, record_event
from hpcrl.storage.parts import Given


def run_worker(session: Session, placement: Placement) -> RoleLoop:
    """Collect and update in turn until the budget is used or all agree to stop. Collective over the workers.

    With lag.injection batches wait in a queue of that length, which is full before the first update.
    """
    config = session.config
    algorithm = make_algorithm(config, session.env_spec)
    learning = Learning(session, placement, algorithm)
    collector = Collector(session, placement, algorithm)
    layout = TrajectoryLayout(session.trajectory_spec)
    waiting = _waiting(session, placement)
    free = list(layout.allocate(learning.reuse.batches + config.lag.injection - len(waiting)))
    buffer: dict[int, Bytes] = {}
    columns = session.trajectory_spec.num_envs

    def components() -> dict[str, Given]:
        if not config.lag.injection:
            return collector.components()
        queue = QueueState(session.trajectory_spec)
        for ahead, row in enumerate(waiting):
            queue.add(row, learning.updates + ahead, int(layout.view(row).header["version_first"]))
        return collector.components() | {"queue": queue.values()}

    def keep_records_moving() -> bool:
        session.poll_records()
        return False  # the others would wait for this rank's part: the stop is agreed on between updates

    yield True
    session.start_clock()
    while not learning.vote():
        if learning.cut_here:
            learning.cut(components())
            if learning.stopping:
                break
        learning.poll()
        place = learning.reuse.place(learning.updates)
        if learning.reuse.is_new(learning.updates):
            if place in buffer:
                free.append(buffer[place])
            while len(waiting) <= config.lag.injection:
                trajectory = layout.begin(
                    free.pop(),
                    attempt=session.world.attempt,
                    version=learning.updates,
                    actor=placement.role_rank,
                    grant=learning.updates + len(waiting),
                    envs=collector.envs,
                )
                collector.collect(trajectory, learning.updates, keep_records_moving, learning.env_steps)
                waiting.append(trajectory.buffer)
            buffer[place] = waiting.popleft()
        offset = placement.role_rank * columns
        learning.update([layout.view(buffer[place])], offset, config.ranks.workers * columns)
        yield True
    with session.timers("end.wait"):
        yield from learning.end()
        yield from learning.finish(components())
    collector.close()


def _waiting(session: Session, placement: Placement) -> deque[Bytes]:
    """The batches that a checkpoint holds, oldest first; none at the beginning. Local."""
    queue, saved = QueueState(session.trajectory_spec), session.cuts.saved
    if saved is not None and session.config.lag.injection:
        saved.restore(part_name(placement), "queue", queue.load)
    if queue.foreign:
        text = "saved in another layout, when the run was resumed"
        record_event(session, placement, "dropped_trajectory", text, queue.foreign)
    return deque(row.copy() for _, _, row in queue.in_order())
