"""What a learner writes down of the trajectories that it trained on."""

import numpy as np
import pytest

from hpcrl.data.trajectory import ORIGIN
from hpcrl.roles.batch import trained_rows
from hpcrl.storage.raw_rows import row_checksums
from hpcrl.storage.schema import TABLES


def origins(*numbers):
    """Columns of trajectories, by (attempt, actor, grant)."""
    return np.array(list(numbers), ORIGIN)


def fields(version, valid):
    return {"parameter_version": np.array(version, np.int32), "valid": np.array(valid, np.bool_)}


def test_a_row_for_each_trajectory_and_version():
    """Two trajectories, of two columns and of one; the second has two versions, and one step that is not valid."""
    rows, histogram = trained_rows(
        9,
        fields([[9, 9, 7], [9, 9, 8], [9, 9, 8]], [[1, 1, 1], [1, 0, 1], [1, 0, 1]]),
        origins((2, 1, 50), (2, 1, 50), (1, 0, 44)),
        max_lag=3,
    )
    names = ["update", "collected_in", "actor", "grant", "parameter_version", "env_steps"]
    assert [tuple(row) for row in rows[names].tolist()] == [
        (10, 2, 1, 50, 9, 4),
        (10, 1, 0, 44, 8, 2),
        (10, 1, 0, 44, 7, 1),
    ]
    assert histogram.tolist() == [4, 2, 1, 0]


@pytest.mark.parametrize("columns", [0, 2])
def test_nothing_valid_is_no_row(columns):
    rows, histogram = trained_rows(
        1, fields(np.ones((3, columns)), np.zeros((3, columns))), origins(*[(1, 0, 0)] * columns), 1
    )
    assert len(rows) == 0 and histogram.tolist() == [0, 0]
    assert row_checksums(rows).sum() == 0


@pytest.mark.parametrize("version", [4, 8])
def test_outside_the_bound_is_refused_where_it_is_valid(version):
    broken = fields([[version, 7]], [[True, True]])
    with pytest.raises(RuntimeError, match=r"outside 0..lag.max_lag=2"):
        trained_rows(7, broken, origins((1, 0, 0), (1, 1, 0)), 2)
    broken["valid"][0, 0] = False
    rows, _ = trained_rows(7, broken, origins((1, 0, 0), (1, 1, 0)), 2)
    assert rows["actor"].tolist() == [1]


def test_every_value_of_a_row_is_in_its_checksum():
    row = TABLES["trajectories"].rows(
        1, update=1, collected_in=2, actor=3, grant=4, parameter_version=5, env_steps=6
    )
    (before,) = row_checksums(row)
    for name in row.dtype.names:
        other = row.copy()
        other[name] += 1
        assert row_checksums(other)[0] != before
    wider = np.zeros(1, [*row.dtype.descr, ("attempt", "i4")])
    for name in row.dtype.names:
        wider[name] = row[name]
    assert row_checksums(wider)[0] == before
