from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.comm.rows import Arena
from hpcrl.comm.stream import Tag
from hpcrl.roles.session import StillInFlight
from hpcrl.roles.session import drain as drain_role
from tests.mpi.support import drain, meet, open_test_world, poll_until


@pytest.mark.parametrize("transport", ["auto", "messages"])
def test_a_rank_that_waits_too_long_says_for_what(comm, transport):
    """The previous rank sends one of two promised messages and does not close."""
    settings = {"comm": {"drain_timeout_s": 0.2, "transport": transport}}
    with open_test_world(comm, **settings) as world:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        arena = Arena(world, 2, 64)
        grants, granted = world.sender(after, Tag.GRANT), world.receiver(before, Tag.GRANT)
        rows, arrivals = (
            world.row_sender(after, Tag.TRAJECTORY, arena, 1),
            world.row_receiver(before, Tag.TRAJECTORY, arena),
        )
        for row in range(2):
            granted.post(np.zeros(1, np.int64))
            arrivals.post(row)
        grants.send(np.zeros(1, np.int64))
        rows.begin(0)
        rows.send(0)

        def ready():
            granted.poll()
            arrivals.poll()
            return granted.drained and arrivals.drained

        # what can come has come, however late the others are
        poll_until(world, lambda: not ready() and granted.messages == arrivals.messages == 1)
        meet(world, [ready])
        session = SimpleNamespace(config=world.config, world=world)
        with pytest.raises(StillInFlight) as caught:
            for _ in drain_role(ready, session):
                world.waiter.idle()
        text = str(caught.value)
        assert f"rank {comm.rank} has waited for 0.2 s (comm.drain_timeout_s)" in text
        assert f"GRANT from rank {before}: 1 of an unknown number received" in text
        assert f"TRAJECTORY from rank {before}: 1 of an unknown number received" in text
        assert f"GRANT to rank {after}: 1 sent, 0 still under way, open" in text
        assert f"TRAJECTORY to rank {after}: 1 sent, 0 still under way, open" in text
        meet(world)
        grants.close()
        rows.close()
        for _ in drain_role(ready, session):
            world.waiter.idle()
        drain(world, grants, rows)
        arrivals.cancel()
        granted.cancel()
        assert "no stream is open" in world.report()
