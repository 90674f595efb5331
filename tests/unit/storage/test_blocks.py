"""Large arrays of a checkpoint, of which only what is new is written."""

import numpy as np
import pytest

from hpcrl.storage import blocks as in_blocks
from hpcrl.storage import checkpoint, parts
from hpcrl.storage.components import COMPONENTS

BLOCK_BYTES, LARGE_BYTES = 1 << 14, 1 << 15
ROWS, ROW = 400, 1 << 12


@pytest.fixture(autouse=True)
def any_component_and_small_blocks(monkeypatch):
    monkeypatch.setitem(COMPONENTS, "values", COMPONENTS["algorithm"])
    monkeypatch.setattr(in_blocks, "BLOCK_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(parts, "LARGE_BYTES", LARGE_BYTES)


def save(run, update, *, keep=2, **values):
    """A set of one part; the bytes of it that no older set had on the disk."""
    found = checkpoint.write_part(run, update, "replay-0", {"values": values})
    new = [path for path in (run / "checkpoints" / f".tmp-{update:012d}").rglob("*") if path.is_file()]
    written = sum(path.stat().st_size for path in new if path.stat().st_nlink == 1)
    checkpoint.complete(run, update, {"replay-0": found}, meta={}, keep=keep)
    return written


def load(run):
    found = {}
    checkpoint.newest(run).restore("replay-0", "values", found.update)
    return found


def blocks(run, update):
    return sorted((run / "checkpoints" / f"{update:012d}" / "replay-0.blocks").iterdir())


def test_one_per_cent_of_new_rows_costs_a_few_per_cent_of_the_bytes(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (ROWS, ROW), np.uint8)
    first = save(tmp_path, 1, rows=rows, cursor=0)
    assert rows.nbytes <= first < 1.03 * rows.nbytes
    rows[37:41] += 1
    assert save(tmp_path, 2, rows=rows, cursor=4) < 0.05 * rows.nbytes
    np.testing.assert_array_equal(load(tmp_path)["rows"], rows)
    assert save(tmp_path, 3, keep=1, rows=rows, cursor=4) < 0.02 * rows.nbytes
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1, "the sets that were linked to are gone"
    np.testing.assert_array_equal(load(tmp_path)["rows"], rows)


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float32, np.complex128, ">f4"])
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_any_large_array_comes_back(tmp_path, dtype, extra):
    size = LARGE_BYTES // np.dtype(dtype).itemsize + extra
    value = np.random.default_rng(1).integers(0, 2, (1, size, 1)).astype(dtype)
    save(tmp_path, 1, value=value, other=value[:, ::2], small=np.arange(3))
    back = load(tmp_path)
    assert back["value"].dtype == value.dtype and back["value"].shape == value.shape
    np.testing.assert_array_equal(back["value"], value)
    np.testing.assert_array_equal(back["other"], value[:, ::2])
    assert len(blocks(tmp_path, 1)) <= LARGE_BYTES // BLOCK_BYTES + 1


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_block_leads_to_the_set_before(tmp_path, damage, caplog):
    rng = np.random.default_rng(2)
    for update in (1, 2):
        save(tmp_path, update, rows=rng.random(LARGE_BYTES // 8), number=update)
    path = blocks(tmp_path, 2)[1]
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.unlink()
    if damage != "remove":
        path.write_bytes(data if damage == "flip" else data[:-1])
    assert load(tmp_path)["number"] == 1
    assert path.name in caplog.text


def test_without_hard_links_everything_is_written(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    rows = np.arange(LARGE_BYTES // 8)
    save(tmp_path, 1, rows=rows)
    monkeypatch.setattr("os.link", refuse)
    assert save(tmp_path, 2, keep=1, rows=rows) >= rows.nbytes
    np.testing.assert_array_equal(load(tmp_path)["rows"], rows)


def test_a_block_of_another_length_is_not_taken_over(tmp_path):
    """A block that was torn under its name by a disk that lied is written anew."""
    rows = np.random.default_rng(3).random(LARGE_BYTES // 8)
    save(tmp_path, 1, rows=rows)
    path = blocks(tmp_path, 1)[0]
    path.write_bytes(path.read_bytes()[:100])
    save(tmp_path, 2, rows=rows)
    np.testing.assert_array_equal(load(tmp_path)["rows"], rows)


def test_what_an_interrupted_save_left_is_not_trusted(tmp_path):
    """A block that stands under its name already, but torn, is written again."""
    rows = np.random.default_rng(4).random(LARGE_BYTES // 8)
    checkpoint.write_part(tmp_path, 1, "replay-0", {"values": {"rows": rows}})
    folder = tmp_path / "checkpoints" / ".tmp-000000000001" / "replay-0.blocks"
    for path in folder.iterdir():
        path.write_bytes(b"torn")
    save(tmp_path, 1, rows=rows)
    np.testing.assert_array_equal(load(tmp_path)["rows"], rows)
