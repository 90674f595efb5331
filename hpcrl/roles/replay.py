"""The replay rank as a queue: grants out, trajectories in, batches on to the learners that asked."""

from __future__ import annotations

from functools import partial

import numpy as np

from hpcrl.comm.ranks import Placement, share
from hpcrl.comm.stream import Receiver, Sender, Tag, all_drained
from hpcrl.config import RunConfig
from hpcrl.data.admission import Admission
from hpcrl.data.trajectory import Bytes, TrajectoryLayout
from hpcrl.roles.session import RoleLoop, Session, Timers, drain, record_event, record_timers


def run_replay(session: Session, placement: Placement) -> RoleLoop:
    """Serve until the run stops and everything is drained. Point-to-point; waits for nobody."""
    timers = Timers()
    shard = ReplayShard(session, placement, timers)
    while not session.control.stopped:
        progress = shard.take_notes()
        progress |= shard.grant()
        progress |= shard.receive()
        progress |= shard.serve()
        if progress:
            session.report(f"{shard.served} batches sent, {shard.admission.under_way} trajectories under way")
        yield progress
    shard.close_senders()
    yield from drain(shard.drained)
    shard.cancel()
    record_timers(session, placement, timers)


def shard_positions(config: RunConfig, shard: int) -> list[int]:
    """Positions, among the K trajectories of every update, that this replay rank fills. Pure."""
    return list(range(shard, config.batch_trajectories, config.ranks.replay))


def learner_of_position(config: RunConfig, position: int) -> int:
    """The learner (role_rank) that trains the trajectory at a position. Pure."""
    for learner in range(config.ranks.learners):
        if position in share(config.batch_trajectories, config.ranks.learners, learner):
            return learner
    raise ValueError(f"position {position} is not in a batch of {config.batch_trajectories} trajectories")


class ReplayShard:
    """Rows of trajectories, their admission, and the streams around them."""

    def __init__(self, session: Session, placement: Placement, timers: Timers) -> None:
        config, world = session.config, session.world
        self._session = session
        self._placement = placement
        self._timers = timers
        self._layout = TrajectoryLayout(session.trajectory_spec)
        self._positions = shard_positions(config, placement.role_rank)
        actors = range(placement.role_rank, config.ranks.actors, config.ranks.replay)
        actor_ranks = [world.plan.ranks("actor")[index] for index in actors]
        self._trajectories: list[Receiver] = [world.receiver(rank, Tag.TRAJECTORY) for rank in actor_ranks]
        self._grants: list[Sender] = [world.sender(rank, Tag.GRANT) for rank in actor_ranks]
        learners = sorted({learner_of_position(config, position) for position in self._positions})
        ranks = world.plan.ranks("learner")
        self._batches = {index: world.sender(ranks[index], Tag.BATCH) for index in learners}
        self._requests = {index: world.receiver(ranks[index], Tag.REQUEST) for index in learners}
        self._versions = world.receiver(ranks[0], Tag.VERSION)
        for receiver in [*self._requests.values(), self._versions]:
            for _ in range(2):
                receiver.post(np.zeros(1, np.int64))
        self._requested = dict.fromkeys(learners, 0)
        self._free: list[Bytes] = []
        self._rows: dict[int, Bytes] = {}
        self.served = 0
        self.admission = Admission(
            batch=len(self._positions),
            max_lag=config.lag.max_lag,
            actors=len(actor_ranks),
            grants_per_actor=config.comm.slots,
            overdue=config.lag.overdue,
            deterministic=config.deterministic,
        )

    def take_notes(self) -> bool:
        """Requests of the learners and the version they have published."""
        progress = False
        while (note := self._versions.poll()) is not None:
            if int(note[0]) == 0:
                self._session.start_clock()
            self.admission.publish(int(note[0]))
            self._versions.post(note)
            progress = True
        for learner, receiver in self._requests.items():
            while (note := receiver.poll()) is not None:
                self._requested[learner] += 1
                receiver.post(note)
                progress = True
        return progress

    def grant(self) -> bool:
        """Let actors start trajectories: a row is posted for each before its grant leaves."""
        progress = False
        for sender in self._grants:
            sender.poll()
        while (grant := self.admission.next_grant()) is not None:
            row = self._free.pop() if self._free else self._new_row()
            self._trajectories[grant.actor].post(row)
            self._grants[grant.actor].send(np.array([grant.number, grant.version], np.int64))
            progress = True
        return progress

    def receive(self) -> bool:
        """Take in complete trajectories."""
        progress = False
        for receiver in self._trajectories:
            while (row := receiver.poll()) is not None:
                progress = True
                with self._timers("replay.insert"):
                    self._insert(row)
        return progress

    def serve(self) -> bool:
        """Send the next batch once every learner it serves has asked for it and the lag contract allows it."""
        for sender in self._batches.values():
            sender.poll()
        if min(self._requested.values()) <= self.served:
            return False
        self._drop_overdue()
        numbers = self.admission.take_batch(self.served)
        if numbers is None:
            return False
        with self._timers("replay.sample"):
            for number, position in zip(numbers, self._positions, strict=True):
                row = self._rows.pop(number)
                learner = learner_of_position(self._session.config, position)
                self._batches[learner].send(row, on_sent=partial(self._release, row))
        self.served += 1
        return True

    def close_senders(self) -> None:
        """No more grants and batches."""
        for sender in [*self._grants, *self._batches.values()]:
            sender.close()

    def drained(self) -> bool:
        """Take in and forget what still comes; True when every stream of this shard has ended."""
        for receiver in self._trajectories:
            while (row := receiver.poll()) is not None:
                self._release(row)
        self.take_notes()
        receivers = [*self._trajectories, *self._requests.values(), self._versions]
        senders = [*self._grants, *self._batches.values()]
        return all_drained([*receivers, *senders])

    def cancel(self) -> None:
        """Take the posted rows back; only after `drained`."""
        for receiver in [*self._trajectories, *self._requests.values(), self._versions]:
            receiver.cancel()

    def _new_row(self) -> Bytes:
        row: Bytes = self._layout.allocate(1, poison=self._session.config.comm.debug)[0]
        return row

    def _insert(self, row: Bytes) -> None:
        number = int(self._layout.check(row, self._session.world.attempt).header["grant"])
        if self.admission.arrive(number):
            self._rows[number] = row
        else:  # given up, and counted, before it came
            self._release(row)

    def _drop_overdue(self) -> None:
        """Drop what would be too old, here or still with an actor; counted when decided, whether it comes or not."""
        before = self.admission.dropped
        for number in self.admission.drop_overdue(self.served):
            self._release(self._rows.pop(number))
        count = self.admission.dropped - before
        if count:
            text = f"too old for update {self.served + 1} under lag.max_lag={self.admission.max_lag}"
            record_event(self._session, self._placement, "dropped_trajectory", text, count)

    def _release(self, row: Bytes) -> None:
        if self._session.config.comm.debug:
            row[...] = 0xFF
        self._free.append(row)
