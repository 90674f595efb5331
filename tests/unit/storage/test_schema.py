import math

import h5py
import numpy as np
import pytest

from hpcrl.storage import TABLES, Column, Table

MERGES = {"each", "same", "mean", "sum", "min", "max"}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_column_is_declared_in_full(table):
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    assert "attempt" not in names  # readers add it
    for column in table.columns:
        assert column.unit and column.meaning and column.merge in MERGES, column
    assert table.dtype.names == tuple(names)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_types_survive_hdf5(table, tmp_path):
    rows = np.zeros(3, table.dtype)
    for column in table.columns:
        kind = np.dtype(column.dtype).kind
        limit = np.iinfo(column.dtype).max if kind == "i" else None
        values = {
            "i": [limit, -1, 0],
            "f": [0.1, np.nan, -np.inf],
            "b": [True, False, True],
            "S": ["é", "", "b"],
        }
        rows[column.name] = table.rows(
            3, **_bools(table), **{column.name: values[kind]} if kind != "b" else {}
        )[column.name]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["rows"] = rows
    with h5py.File(tmp_path / "x.h5") as file:
        back = file["rows"][:]
    assert back.dtype == table.dtype
    assert back.tobytes() == rows.tobytes()


def test_returns_are_declared_raw_and_with_their_unit():
    for name in ("episodes", "evaluation"):
        column = next(c for c in TABLES[name].columns if c.name == "episode_return")
        assert column.unit == "reward"
        assert "unclipped" in column.meaning


def test_what_a_row_leaves_out_is_marked_as_missing():
    row = TABLES["updates"].row(update=1, applied=True)
    assert row.shape == (1,)
    assert math.isnan(row["policy_loss"][0])
    assert row["lag_max"][0] == -1
    assert row["update"][0] == 1
    event = TABLES["events"].row(kind="started")
    assert event["count"][0] == 1
    assert event["text"][0] == b""


def test_a_bool_cannot_be_left_out():
    with pytest.raises(ValueError, match="updates: applied must be given"):
        TABLES["updates"].row(update=1)


def test_an_unknown_column_names_the_near_one():
    with pytest.raises(ValueError, match="no column 'polcy_loss'; did you mean policy_loss"):
        TABLES["updates"].row(polcy_loss=1.0, applied=True)


def test_rows_take_arrays_scalars_and_no_rows_at_all():
    rows = TABLES["lag"].rows(2, update=5, lag=[0, 1], env_steps=np.array([10, 20]))
    assert rows.tolist() == [(5, 0, 10), (5, 1, 20)]
    assert TABLES["lag"].rows(0).shape == (0,)
    assert TABLES["lag"].empty().dtype == TABLES["lag"].dtype
    with pytest.raises(ValueError, match="could not broadcast"):
        TABLES["lag"].rows(2, lag=[0, 1, 2])


def test_long_text_is_cut_between_characters():
    table = Table("t", (Column("text", "S5", "text", "each", "x"),), "x")
    assert table.row(text="ééé")["text"][0].decode() == "éé"
    assert table.rows(2, text=["abcdefg", "é"])["text"].tolist() == [b"abcde", "é".encode()]


def _bools(table):
    return {c.name: True for c in table.columns if c.dtype == "?"}
