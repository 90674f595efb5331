"""The replay role: a shard of what lies between actors and learners, a queue or a memory."""

from __future__ import annotations

from hpcrl.comm.ranks import Placement
from hpcrl.roles.session import RoleLoop, Session, drain
from hpcrl.roles.shard import Shard


def run_replay(session: Session, placement: Placement) -> RoleLoop:
    """Serve until the run stops and everything is drained. Point-to-point; waits for nobody."""
    shard = open_shard(session, placement)
    while not session.control.stopped:
        progress = session.parameters.poll()
        progress |= shard.take_notes()
        if shard.cut_at is None:
            progress |= shard.grant()
            progress |= shard.receive()
            progress |= shard.serve()
        else:
            progress |= shard.cut(shard.cut_at)
        if progress:
            session.report(f"{shard.served} batches sent, {shard.under_way} trajectories under way")
        yield progress
    shard.close_senders()
    with session.timers("end.wait"):
        yield from drain(shard.drained, session)
    if session.control.save_at is not None:
        yield from session.cuts.write_last(session.control.save_at, placement, shard.components())
    shard.cancel()


def open_shard(session: Session, placement: Placement) -> Shard:
    """What the algorithm of this run needs. Local."""
    if session.config.algorithm.uses_replay:
        from hpcrl.roles.memory_shard import MemoryShard as Kind
    else:
        from hpcrl.roles.queue_shard import QueueShard as Kind  # type: ignore[assignment]
    return Kind(session, placement)
