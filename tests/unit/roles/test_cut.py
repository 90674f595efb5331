"""When an attempt is not to be repeated."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from hpcrl.comm.control import Control
from hpcrl.config import RunConfig
from hpcrl.roles.cut import Cuts
from tests.system.support import TOY

FUTILE = ("SIGUSR1 on rank 3", 100, 7, 7)


@pytest.mark.parametrize(
    ("cause", "left_s", "saved", "update", "futile"),
    [
        (*FUTILE, True),
        ("the end of the allocation", 60, 0, 0, True),
        ("SIGUSR2", 100, 7, 7, True),
        ("SIGTERM", 100, 7, 7, False),  # a person, or a preemption
        ("SIGUSR1 on rank 3", 5000, 7, 7, False),  # a preemption
        ("SIGUSR1 on rank 3", None, 7, 7, False),
        ("SIGUSR1 on rank 3", 100, 7, 8, False),
        ("SIGUSR1 on rank 3", 100, None, 0, False),  # its trajectories are saved at update 0
    ],
)
def test_futile_is_what_made_no_update_before_the_end_of_the_allocation(cause, left_s, saved, update, futile):
    config = RunConfig.parse(TOY)
    world = SimpleNamespace(rank=0, failures=None)
    world.plan = SimpleNamespace(ranks=lambda role: [0], placements=[])
    control = Control.__new__(Control)  # without streams: only its cause is asked for
    control._stop_cause, control.poll = cause, lambda: None
    loaded = None if saved is None else SimpleNamespace(update=saved)
    cuts = Cuts(world, config, control, "nowhere", loaded)
    now = datetime.now(UTC).timestamp()
    cuts.stop_before(None if left_s is None else now + left_s, now - 40.0)
    cuts.started()
    text = cuts.futility(update)
    assert bool(text) == futile
    if (cause, left_s, saved, update) == FUTILE:
        assert "no update since that of the checkpoint, 7," in text
        assert (
            "began 140 s before the end of the allocation; its start took 40 s, and 100 s were left" in text
        )
        assert "stopped by SIGUSR1 on rank 3 (checkpoint.margin_s=60," in text
