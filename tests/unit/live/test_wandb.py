"""The sink of Weights & Biases, with the library itself, without a network."""

import json
import os
import struct
import subprocess
import sys

import pytest
from wandb.proto.wandb_internal_pb2 import Record

from hpcrl.storage import TABLES
from tests.unit.live.support import BEGAN_S, begin, clock, open_log, updates


@pytest.fixture
def run(tmp_path):
    with begin(tmp_path / "run") as directory:
        with open_log(directory.path) as log:
            log.append("events", clock())
            log.append("updates", updates(1, 3))
            log.append("metrics", TABLES["metrics"].row(update=2, name="late", value=0.25))
        yield directory.path


def records(folder):
    """What the library has kept for a later `wandb sync`: records in blocks of 32 KB, in the form of LevelDB's log."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    content, place, parts = path.read_bytes(), 7, []
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts.append(content[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def test_an_offline_run_has_every_series_over_env_steps(run, tmp_path):
    command = [sys.executable, "-m", "hpcrl", "export", str(run), "--wandb", "of-tests"]
    environ = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}

    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = list(records(tmp_path))
    (begun,) = [one.run for one in found if one.WhichOneof("record_type") == "run"][:1]
    assert (begun.project, begun.display_name) == ("of-tests", "run")
    history = [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in one.history.item}
        for one in found
        if one.WhichOneof("record_type") == "history"
    ]
    losses = [
        (row["env_steps"], row["updates/policy_loss"]) for row in history if "updates/policy_loss" in row
    ]
    assert losses == [(10, 0.125), (20, 0.25), (30, 0.375)]
    assert [(row["env_steps"], row["metrics/late"]) for row in history if "metrics/late" in row] == [
        (20, 0.25)
    ]
    times = {row["env_steps"]: row["_timestamp"] for row in history}
    assert times == pytest.approx({10: BEGAN_S + 0.5, 20: BEGAN_S + 1.0, 30: BEGAN_S + 1.5}, abs=1e-3)


def test_it_is_imported_only_when_asked_for_and_torch_and_mpi_never_needed(run, tmp_path):
    for name in ("wandb", "torch", "mpi4py"):
        (tmp_path / "blocked" / name).mkdir(parents=True)
        (tmp_path / "blocked" / name / "__init__.py").write_text("raise ImportError('not on a laptop')\n")
    command = [sys.executable, "-m", "hpcrl", "export", str(run), "--tensorboard", str(tmp_path / "tb")]
    path = os.pathsep.join([str(tmp_path / "blocked"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "tb/run").iterdir())
    command[-2:] = ["--wandb", "x"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "pip install 'hpcrl[wandb]'" in done.stderr
