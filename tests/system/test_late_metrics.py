"""A quantity that no table has a column for and that first appears late (P32): recorded, proved, read everywhere."""

import json
import subprocess
import sys
from datetime import datetime, timedelta

import h5py
import numpy as np
import pandas as pd

from hpcrl.audit.verdict import audit
from hpcrl.audit.verify import verify_run
from hpcrl.live.view import View
from hpcrl.live.watch import Watch
from hpcrl.storage import read_table
from hpcrl.storage.merge import merge
from tests.system.late_metrics import FIRST, LONG
from tests.system.support import TOP, WITH_TESTS, run


def test_a_metric_that_appears_late_is_in_every_form_of_the_results(tmp_path):
    ended = run(tmp_path, "algorithm.name=tests.system.late_metrics:LateMetrics", ranks=1, environ=WITH_TESTS)
    assert ended.code == 0, ended.stderr
    updates, rows = ended.table("updates"), ended.table("metrics")
    last = int(updates["update"].max())
    assert last > FIRST + 1
    own = rows[rows["name"] == b"surprise"]
    assert own["update"].tolist() == list(range(FIRST, last + 1))
    np.testing.assert_array_equal(own["value"], 0.5 * own["update"])
    (long,) = set(rows["name"]) - {b"surprise"}
    assert LONG.startswith(long.decode()) and 47 <= len(long) <= 48

    assert audit(ended.run_dir).proved
    assert verify_run(ended.run_dir).sound
    with h5py.File(ended.run_dir / "attempts/001.h5") as file:  # by any program
        np.testing.assert_array_equal(file["metrics"]["name"], rows["name"])
    merge(ended.run_dir, tmp_path / "merged.h5")
    assert read_table(tmp_path / "merged.h5", "metrics").tobytes() == rows.tobytes()

    code = (
        "import sys; from load import load_run\n"
        "frame = load_run(sys.argv[1], 'metrics')['metrics']\n"
        "print(frame.pivot(index='update', columns='name', values='value')['surprise'].to_json())"
    )
    command = [sys.executable, "-c", code, ended.run_dir]
    done = subprocess.run(command, cwd=TOP / "analysis", capture_output=True, text=True, check=True)
    surprise = {str(update): 0.5 * update for update in range(FIRST, last + 1)}
    assert json.loads(done.stdout) == surprise

    view = Watch(ended.run_dir).look()
    assert isinstance(view, View) and view.state.metrics["surprise"] == 0.5 * last
    command = [sys.executable, "-m", "hpcrl", "export", ended.run_dir, "--csv", tmp_path / "csv"]
    subprocess.run(command, check=True, capture_output=True)
    frame = pd.read_csv(tmp_path / "csv" / ended.run_dir.name / "metrics.csv")
    assert len(frame) == len(rows) and frame["name"].tolist() == [name.decode() for name in rows["name"]]

    # by which exports know what time it was at `time_s` 0
    events = ended.table("events")
    (clock,) = events["text"][events["kind"] == b"clock"]
    began, over = (
        datetime.fromisoformat(json.loads((ended.run_dir / f"{name}.json").read_text())[key])
        for name, key in (("provenance", "collected_at"), ("status", "written_at"))
    )
    assert began <= datetime.fromisoformat(clock.decode()) < over + timedelta(seconds=1)
