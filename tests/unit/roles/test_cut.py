"""When an attempt is not to be repeated."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from hpcrl.comm.control import Control
from hpcrl.config import RunConfig
from hpcrl.roles.cut import Cuts
from hpcrl.storage import checkpoint
from tests.system.support import TOY

FUTILE = ("SIGUSR1 on rank 3", 100, 7, 7)


def resumed(cause, saved):
    """Cuts of learner 0 in an attempt that went on from update `saved` and is stopped by `cause`."""
    world = SimpleNamespace(rank=0, failures=None)
    world.plan = SimpleNamespace(ranks=lambda role: [0], placements=[])
    control = Control.__new__(Control)  # without streams: only its cause is asked for
    control._stop_cause, control.poll = cause, lambda: None
    loaded = None if saved is None else SimpleNamespace(update=saved)
    return Cuts(world, RunConfig.parse(TOY), control, "nowhere", loaded)


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
    cuts = resumed(cause, saved)
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


def test_an_attempt_that_worked_for_longer_than_its_start_took_is_not_futile():
    """Of slow environments a batch may take attempts; trajectories are saved."""
    cuts, now = resumed("SIGUSR1", 7), datetime.now(UTC).timestamp()
    cuts.stop_before(now + 100, now - 40.0)
    cuts.started()
    assert cuts.futility(7)
    cuts.stop_before(now + 100, now - 90.0)
    assert not cuts.futility(7)


def test_a_set_is_not_complete_before_the_rows_of_its_updates_are_in_the_result_file(monkeypatch):
    """Rows of an earlier set, or of the one that this one took the place of, do not do."""
    cuts = resumed("", None)
    cuts._control.rows_on_disk, cuts._control.score = -1, None
    cuts._control._asking, cuts._control.take_parts = None, lambda: []
    cuts._world.attempt = 1
    completed = []
    monkeypatch.setattr(
        checkpoint, "complete", lambda folder, update, hashes, **how: completed.append(update)
    )
    cuts.begin(7, 100)
    cuts._control.send_rows(2 * 6)
    assert cuts.poll() == [] and cuts.missing() == "the rows in the result file"
    cuts.begin(7, 100, final=True)
    cuts._control.send_rows(2 * 7)
    assert cuts.poll() == []
    cuts._control.send_rows(2 * 7 + 1)
    assert cuts.poll()[0][0] == "checkpoint" and completed == [7]
