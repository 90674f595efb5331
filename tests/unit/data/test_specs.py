import os
import subprocess
import sys
from dataclasses import replace

import pytest

from hpcrl.data.specs import ActionSpec, ArraySpec, EnvSpec, Field, TrajectorySpec, trajectory_spec

FIELDS = (
    Field(name="obs", dtype="float32", shape=(4,), extra_step=True),
    Field(name="valid", dtype="bool"),
)
SPEC = TrajectorySpec(unroll_length=8, num_envs=2, fields=FIELDS)


def changed_field(**changes):
    return replace(SPEC, fields=(replace(FIELDS[0], **changes), FIELDS[1]))


CHANGED = {
    "unroll_length": replace(SPEC, unroll_length=9),
    "num_envs": replace(SPEC, num_envs=3),
    "order": replace(SPEC, fields=FIELDS[::-1]),
    "more fields": replace(SPEC, fields=(*FIELDS, Field(name="extra", dtype="bool"))),
    "fewer fields": replace(SPEC, fields=FIELDS[:1]),
    "name": changed_field(name="observation"),
    "dtype": changed_field(dtype="float64"),
    "shape": changed_field(shape=(5,)),
    "rank": changed_field(shape=(4, 1)),
    "extra_step": changed_field(extra_step=False),
    "start_only": changed_field(extra_step=False, start_only=True),
    "unit": changed_field(unit="m"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_digest_changes_with_any_change(change):
    assert CHANGED[change].digest != SPEC.digest


def test_digests_are_all_different_and_fit_the_header():
    digests = {spec.digest for spec in CHANGED.values()}
    assert len(digests) == len(CHANGED)
    assert all(0 <= digest < 2**63 for digest in digests)


def test_digest_is_the_same_for_the_same_layout_in_any_process():
    code = f"from hpcrl.data.specs import *; print(({SPEC!r}).digest)"
    environ = os.environ | {"PYTHONHASHSEED": "17"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == SPEC.digest


@pytest.mark.parametrize(
    ("action", "shape", "dtype"),
    [
        (ActionSpec(kind="discrete", size=6), (), "int64"),
        (ActionSpec(kind="continuous", size=6, low=(-1.0,) * 6, high=(1.0,) * 6), (6,), "float32"),
        (ActionSpec(kind="continuous", size=1, low=(-1.0,), high=(1.0,)), (1,), "float32"),
    ],
)
def test_standard_fields(action, shape, dtype):
    env = EnvSpec(id="x", observation=ArraySpec(shape=(84, 84), dtype="uint8"), action=action)
    extra = Field(name="behavior_log_prob", dtype="float32", unit="nat")
    spec = trajectory_spec(env, 5, 3, (extra,))
    fields = {field.name: field for field in spec.fields}
    assert list(fields) == [
        "obs",
        "action",
        "reward",
        "terminated",
        "truncated",
        "valid",
        "parameter_version",
        "behavior_log_prob",
    ]
    assert (fields["obs"].shape, fields["obs"].dtype) == ((84, 84), "uint8")
    assert (fields["action"].shape, fields["action"].dtype) == (shape, dtype)
    assert [name for name, field in fields.items() if field.extra_step] == ["obs"]
    assert (spec.unroll_length, spec.num_envs) == (5, 3)
