"""A disk that refuses the result file of a run while it goes on."""

import resource
import signal

import pytest

from hpcrl.audit.verify import verify_run
from tests.system.support import FOREVER, TOY, start

SLOW = 'env.kwargs={"seconds_per_step": 0.001}'
CHAIN = TOY | {"env": {"id": "chain", "engine": "toy", "num_envs": 6}, "evaluation": {"episodes": 0}}


def refuse(running, refused=True):
    """Have the system refuse whatever would make a file of the writer's longer than the result file is."""
    size = (running.run_dir / "attempts/001.h5").stat().st_size if refused else resource.RLIM_INFINITY
    resource.prlimit(running.pids()["replay 0"], resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def said(running, text):
    return text in " ".join((running.folder / "err.txt").read_text().split())


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_full_disk(tmp_path, comes_back):
    """Training goes on, and all rows come when there is room again; else the end says why."""
    patience = "storage.patience_s=60" if comes_back else "storage.patience_s=1.5"
    often = ("storage.flush_interval_s=0.01", "log.progress_interval_s=0.1")
    with start(tmp_path, FOREVER, SLOW, patience, *often, recipe=CHAIN) as running:
        running.until_updates(3)
        found = verify_run(running.run_dir)
        assert found.sound and found.status == "running", found.violations
        refuse(running)
        running.until(lambda: said(running, "cannot be written; rows wait in memory"))
        if comes_back:
            printed = (tmp_path / "out.txt").stat().st_size
            running.until(lambda: (tmp_path / "out.txt").stat().st_size > printed + 1000)
            refuse(running, refused=False)
            running.until(lambda: said(running, "is written again, after"))
            running.process.send_signal(signal.SIGTERM)
        ended = running.wait()
    found = verify_run(ended.run_dir)
    assert found.sound, found.violations
    events = ended.table("events")["kind"].tolist()
    if comes_back:
        assert ended.code == 75, ended.stderr
        assert events.count(b"disk_refuses") == events.count(b"disk_well") == 1 and found.notes == ()
        updates = ended.table("updates")["update"].tolist()
        assert updates == list(range(1, ended.describe()["updates"] + 1))
    else:
        assert ended.code == 3, ended.stderr
        (line,) = ended.named_failures()
        assert "could not be written for" in line and "storage.patience_s=1.5" in line
        assert "Traceback" not in ended.stderr
        assert len(ended.table("updates")) >= 3 and b"disk_refuses" not in events
        assert ended.describe()["status"] == "failed"
