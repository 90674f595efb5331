from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.data.specs import Field, TrajectorySpec
from hpcrl.data.trajectory import (
    ALIGNMENT,
    HEADER,
    HEADER_BYTES,
    ForeignTrajectoryError,
    TrajectoryLayout,
)

VALID = Field(name="valid", dtype="bool")
VERSION = Field(name="parameter_version", dtype="int32", unit="update")


def spec(*extra, unroll_length=3, num_envs=2):
    fields = (
        Field(name="obs", dtype="float32", shape=(5,), extra_step=True),
        Field(name="action", dtype="int64"),
        VALID,
        VERSION,
        Field(name="initial_state", dtype="float32", shape=(2,), start_only=True),
        *extra,
    )
    return TrajectorySpec(unroll_length=unroll_length, num_envs=num_envs, fields=fields)


@st.composite
def specs(draw):
    dtypes = st.sampled_from(("bool", "uint8", "int32", "int64", "float32", "float64"))
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    times = st.sampled_from(({}, {"extra_step": True}, {"start_only": True}))
    extra = [
        Field(name=f"f{i}", dtype=draw(dtypes), shape=draw(shapes), **draw(times))
        for i in range(draw(st.integers(0, 6)))
    ]
    return spec(*extra, unroll_length=draw(st.integers(1, 7)), num_envs=draw(st.integers(1, 5)))


def begin(layout, buffer, **changes):
    given = {"attempt": 2, "version": 7, "actor": 1, "grant": 11, "envs": range(4, 4 + layout.spec.num_envs)}
    return layout.begin(buffer, **given | changes)


@settings(max_examples=100, deadline=None)
@given(specs(), st.integers(0, 3))
def test_every_field_is_aligned_and_none_overlaps_another(spec, count):
    layout = TrajectoryLayout(spec)
    rows = layout.allocate(count)
    assert rows.shape == (count, layout.nbytes) and layout.nbytes % ALIGNMENT == 0
    for buffer in rows:
        assert buffer.ctypes.data % ALIGNMENT == 0
        fields = layout.view(buffer).fields
        assert list(fields) == [field.name for field in spec.fields]
        for field in spec.fields:
            time = 1 if field.start_only else spec.unroll_length + field.extra_step
            assert fields[field.name].shape == (time, spec.num_envs, *field.shape)
            assert fields[field.name].dtype == field.dtype
            assert fields[field.name].ctypes.data % ALIGNMENT == 0
    # distinct patterns everywhere, written forwards, read back through other views
    views = [(row, name) for row in range(count) for name in layout.view(rows[row]).fields]
    for pattern, (row, name) in enumerate(views):
        layout.view(rows[row]).fields[name].view(np.uint8)[...] = pattern % 251
    for row in range(count):
        layout.view(rows[row]).header["grant"] = 1000 + row
    for pattern, (row, name) in enumerate(views):
        assert (layout.view(rows[row]).fields[name].view(np.uint8) == pattern % 251).all()
    assert [int(layout.view(row).header["grant"]) for row in rows] == [1000 + row for row in range(count)]


def test_the_smallest_trajectory():
    layout = TrajectoryLayout(TrajectorySpec(unroll_length=1, num_envs=1, fields=(VALID, VERSION)))
    assert layout.nbytes == HEADER_BYTES + 3 * ALIGNMENT  # origins and two fields
    trajectory = begin(layout, layout.allocate(1)[0])
    trajectory.fields["valid"][...] = True
    trajectory.seal(checksum=True)
    assert layout.check(trajectory.buffer, 2).header["valid_steps"] == 1


def test_a_field_without_entries_at_the_very_end():
    layout = TrajectoryLayout(spec(Field(name="nothing", dtype="float32", shape=(0, 3))))
    assert layout.view(layout.allocate(1)[0]).fields["nothing"].shape == (3, 2, 0, 3)


def test_views_share_the_buffer():
    layout = TrajectoryLayout(spec())
    buffer = layout.allocate(1)[0]
    layout.view(buffer).fields["obs"][2, 1, 3] = 4.5
    assert layout.view(buffer).fields["obs"][2, 1, 3] == 4.5
    assert layout.view(buffer.copy()).fields["obs"][2, 1, 3] == 4.5


def test_poison_is_nan_in_floats():
    layout = TrajectoryLayout(spec())
    assert np.isnan(layout.view(layout.allocate(2, poison=True)[1]).fields["obs"]).all()
    assert not layout.allocate(2).any()


def test_header_holds_64_bit_lengths():
    layout = TrajectoryLayout(spec())
    buffer = layout.allocate(1)[0]
    for name in HEADER.names:
        layout.view(buffer).header[name] = 2**33 + 1
        assert int(layout.view(buffer.copy()).header[name]) == 2**33 + 1
    assert HEADER["valid_steps"].itemsize == 8


def test_begin_fills_the_header():
    layout = TrajectoryLayout(spec())
    trajectory = begin(layout, layout.allocate(1)[0], envs=range(6, 7))
    header = {name: int(trajectory.header[name]) for name in HEADER.names}
    assert header["digest"] == spec().digest and header["nbytes"] == layout.nbytes
    assert (header["attempt"], header["actor"], header["grant"]) == (2, 1, 11)
    assert (header["version_first"], header["version_last"]) == (7, 7)
    assert (header["first_env"], header["num_envs"]) == (6, 1)
    assert (trajectory.fields["parameter_version"] == 7).all()
    assert trajectory.origin.tolist() == [(2, 1, 11)] * 2


@pytest.mark.parametrize("used", [0, 1, 2])
def test_unused_columns_are_cleared(used):
    layout = TrajectoryLayout(spec())
    trajectory = begin(layout, layout.allocate(1, poison=True)[0], envs=range(used))
    for name in ("obs", "action", "valid", "initial_state"):
        assert not trajectory.fields[name][:, used:].any()
    trajectory.fields["valid"][:, :used] = True
    trajectory.seal(checksum=False)
    assert trajectory.header["valid_steps"] == 3 * used


def test_seal_counts_valid_env_steps():
    layout = TrajectoryLayout(spec())
    trajectory = begin(layout, layout.allocate(1)[0])
    trajectory.fields["valid"][...] = [[True, False], [True, True], [False, False]]
    trajectory.seal(checksum=False)
    assert (int(trajectory.header["valid_steps"]), int(trajectory.header["checksum"])) == (3, 0)


def test_any_flipped_bit_behind_the_header_is_seen():
    layout = TrajectoryLayout(spec())
    trajectory = begin(layout, layout.allocate(1)[0])
    trajectory.fields["obs"][...] = np.arange(4 * 2 * 5).reshape(4, 2, 5)
    trajectory.seal(checksum=True)
    layout.check(trajectory.buffer, 2)
    for place in [HEADER_BYTES, (HEADER_BYTES + layout.nbytes) // 2, layout.nbytes - 1]:
        damaged = trajectory.buffer.copy()
        damaged[place] ^= 1
        with pytest.raises(ForeignTrajectoryError, match="checksum of trajectory 11"):
            layout.check(damaged, 2)


def test_without_a_checksum_nothing_is_compared():
    layout = TrajectoryLayout(spec())
    trajectory = begin(layout, layout.allocate(1)[0])
    trajectory.seal(checksum=False)
    trajectory.buffer[-1] ^= 1
    layout.check(trajectory.buffer, 2)


@pytest.mark.parametrize("name", ["magic", "digest", "nbytes", "attempt"])
def test_foreign_headers_are_refused(name):
    layout = TrajectoryLayout(spec())
    trajectory = begin(layout, layout.allocate(1)[0])
    trajectory.seal(checksum=True)
    trajectory.header[name] += 1
    with pytest.raises(ForeignTrajectoryError, match=f"trajectory {name} is"):
        layout.check(trajectory.buffer, 2)


def test_another_attempt_is_refused():
    layout = TrajectoryLayout(spec())
    trajectory = begin(layout, layout.allocate(1)[0])
    with pytest.raises(ForeignTrajectoryError, match="attempt is 2, expected 3"):
        layout.check(trajectory.buffer, 3)


def test_another_layout_of_the_same_size_is_refused():
    ours, theirs = (
        TrajectoryLayout(spec(Field(name="y", dtype="bool"))),
        TrajectoryLayout(spec(Field(name="x", dtype="bool"))),
    )
    assert ours.nbytes == theirs.nbytes
    with pytest.raises(ForeignTrajectoryError, match="digest"):
        ours.check(begin(theirs, theirs.allocate(1)[0]).buffer, 2)


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_joined_trajectories_lie_side_by_side(count, checksum):
    single = TrajectoryLayout(spec())
    wide = TrajectoryLayout(replace(spec(), num_envs=2 * count))
    parts = []
    for index in range(count):
        part = begin(single, single.allocate(1)[0], envs=range(2 * index, 2 * index + 2 - (index == 1)))
        part.fields["obs"][...] = index
        part.fields["initial_state"][...] = 10 + index
        part.fields["valid"][:, : 2 - (index == 1)] = True
        part.header["version_first"], part.header["version_last"] = 5 - index, 7 + index
        part.origin["grant"] = 20 + index
        part.seal(checksum)
        parts.append(part)
    joined = wide.check(wide.join(wide.allocate(1, poison=True)[0], parts).buffer, 2)
    for name, array in joined.fields.items():
        assert np.array_equal(array, np.concatenate([part.fields[name] for part in parts], axis=1))
    assert joined.origin["grant"].tolist() == [20 + index for index in range(count) for _ in range(2)]
    header = {name: int(joined.header[name]) for name in HEADER.names}
    assert (header["version_first"], header["version_last"]) == (6 - count, 6 + count)
    assert header["valid_steps"] == sum(int(part.header["valid_steps"]) for part in parts)
    assert header["num_envs"] == 2 * count - (count > 1)
    assert (header["attempt"], header["grant"]) == (2, 11)
    assert bool(header["checksum"]) == checksum
