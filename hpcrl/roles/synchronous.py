"""The synchronous scheme: every rank acts and learns, in step."""

from __future__ import annotations

from hpcrl.algorithms import make_algorithm
from hpcrl.comm.ranks import Placement
from hpcrl.data.trajectory import TrajectoryLayout
from hpcrl.roles.collect import Collector
from hpcrl.roles.learning import Learning
from hpcrl.roles.session import RoleLoop, Session, Timers, record_timers


def run_worker(session: Session, placement: Placement) -> RoleLoop:
    """Collect and update in turn until the budget is used or all agree to stop. Collective over the workers."""
    config = session.config
    timers = Timers(session.open_hops)
    algorithm = make_algorithm(config, session.env_spec)
    learning = Learning(session, placement, algorithm, timers)
    collector = Collector(session, placement, algorithm, timers)
    layout = TrajectoryLayout(session.trajectory_spec)
    slots = layout.allocate(learning.reuse.batches)
    columns = session.trajectory_spec.num_envs

    def keep_records_moving() -> bool:
        session.poll_records()
        return False  # the others would wait for this rank's part: the stop is agreed on between updates

    yield True
    session.start_clock()
    while not learning.vote():
        if learning.cut_here:
            learning.cut(collector.components())
            if learning.stopping:
                break
        learning.poll()
        slot = slots[learning.reuse.place(learning.updates)]
        if learning.reuse.is_new(learning.updates):
            trajectory = layout.begin(
                slot,
                attempt=session.world.attempt,
                version=learning.updates,
                actor=placement.role_rank,
                grant=learning.updates,
                envs=collector.envs,
            )
            collector.collect(trajectory, learning.updates, cancelled=keep_records_moving)
        else:
            trajectory = layout.view(slot)
        offset = placement.role_rank * columns
        learning.update([trajectory], offset, config.ranks.workers * columns)
        yield True
    yield from learning.end()
    yield from learning.finish(collector.components())
    collector.close()
    record_timers(session, placement, timers)
