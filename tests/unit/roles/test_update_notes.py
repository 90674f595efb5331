"""What a learner tells a replay memory comes back as it was given."""

import numpy as np
import pytest

from hpcrl.config import RunConfig
from hpcrl.roles.update_notes import UpdateNote, note_bytes, read_note, write_note


def config(**sections):
    values = {"name": "x", "env": {"id": "counting", "engine": "toy"}, "algorithm": {"name": "dqn"}}
    return RunConfig.parse(values | sections)


@pytest.mark.parametrize("td", [None, [], [0.5, np.nan, 3.0]])
def test_a_note_comes_back(td):
    td = None if td is None else np.array(td, np.float32)
    told = UpdateNote(7, 1 << 40, td)
    columns = 0 if td is None else len(td)
    message = write_note(told).ljust(note_bytes(config(replay={"sampling": "prioritized"}), columns), b"\0")
    said = read_note(message)
    assert (said.batch, said.env_steps) == (7, 1 << 40)
    np.testing.assert_array_equal(said.td, td)


def test_a_request_without_a_note_says_nothing():
    assert read_note(bytes(note_bytes(config(), 3))) is None


def test_room_is_only_made_for_what_is_said():
    """Notes without priorities fit into the mail of a node (48 bytes, 8 of which are the request's number)."""
    assert note_bytes(config(), 3) == note_bytes(config(), 300) == 32
    assert note_bytes(config(replay={"sampling": "prioritized"}), 3) == 44
    assert note_bytes(config(algorithm={"name": "ppo"}), 3) == 0
