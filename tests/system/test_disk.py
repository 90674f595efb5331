"""A disk that refuses the result file, or checkpoints, of a run while it goes on."""

import contextlib
import resource
import signal
import subprocess

import pytest

from hpcrl.audit.verify import verify_run
from hpcrl.diagnose.verdict import diagnose
from hpcrl.storage import checkpoint, read_table
from tests.system.support import FOREVER, TOY, run, start

SLOW = 'env.kwargs={"seconds_per_step": 0.001}'
CHAIN = TOY | {"env": {"id": "chain", "engine": "toy", "num_envs": 6}, "evaluation": {"episodes": 0}}


def refuse(running, refused=True):
    """Have the system refuse whatever would make a file of the writer's longer than the result file is."""
    limit(running, "replay 0", (running.run_dir / "attempts/001.h5").stat().st_size if refused else None)


def limit(running, rank, size):
    """No file of this rank's gets longer than `size` bytes; None: as long as it likes."""
    size = resource.RLIM_INFINITY if size is None else size
    resource.prlimit(running.pids()[rank], resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


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
        assert "disk" in [rule.name for rule, _ in diagnose(ended.run_dir).findings]
        updates = ended.table("updates")["update"].tolist()
        assert updates == list(range(1, ended.describe()["updates"] + 1))
    else:
        assert ended.code == 3, ended.stderr
        (line,) = ended.named_failures()
        assert "could not be written for" in line and "storage.patience_s=1.5" in line
        assert "Traceback" not in ended.stderr
        assert len(ended.table("updates")) >= 3 and b"disk_refuses" not in events
        assert ended.describe()["status"] == "failed"


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_disk_that_takes_no_checkpoint(tmp_path, comes_back):
    """Old sets stay, the run goes on and tries again; else it stops in order, and the end says why."""
    patience = "storage.patience_s=60" if comes_back else "storage.patience_s=1.5"
    settings = (FOREVER, SLOW, patience, "checkpoint.every_updates=3", "storage.run_dir=runs/it")
    with start(tmp_path, *settings, recipe=CHAIN) as running:
        running.until(lambda: checkpoint.find_sets(tmp_path / "runs/it"))
        limit(running, "learner 0", 6000)
        running.until(lambda: said(running, "tries again for up to") or running.process.poll() is not None)
        if comes_back:
            last = checkpoint.newest(running.run_dir)
            running.until_updates(len(read_table(running.run_dir, "updates")) + 5)
            assert checkpoint.newest(running.run_dir) == last
            limit(running, "learner 0", None)
            running.until(lambda: said(running, "checkpoints are written again, after"))
            running.process.send_signal(signal.SIGTERM)
        ended = running.wait()
    found = verify_run(ended.run_dir)
    assert found.sound and found.checkpoints >= 1, found.violations
    assert not list((ended.run_dir / "checkpoints").glob(".tmp-*"))
    events, cause = ended.table("events"), ended.describe()["cause"]
    kinds, saved = events["kind"].tolist(), checkpoint.newest(ended.run_dir).update
    assert b"cannot be written: File too large" in events["text"][kinds.index(b"disk_refuses")]
    assert "part learner-0 of checkpoint" in ended.stderr
    if comes_back:
        assert ended.code == 75, ended.stderr
        assert kinds.count(b"disk_refuses") == kinds.count(b"disk_well") == 1
        assert saved == ended.describe()["updates"]
    else:
        assert (ended.code, ended.describe()["status"]) == (3, "failed"), ended.stderr
        assert (
            ended.named_failures() == [f"hpcrl: {cause}"]
            and "(storage.patience_s=1.5): learner-0 of" in cause
        )
        assert saved < ended.describe()["updates"] and "Traceback" not in ended.stderr


@pytest.mark.faults
def test_a_disk_that_takes_no_last_checkpoint(tmp_path):
    """What was trained is lost after the set before, so the run has not finished; it goes on from there."""
    settings = ("budget.env_steps=1500", SLOW, "storage.patience_s=1.5", "storage.run_dir=runs/it")
    every = ("checkpoint.every_updates=4",)
    with start(tmp_path, *settings, *every, recipe=CHAIN) as running:
        running.until(lambda: checkpoint.find_sets(tmp_path / "runs/it"))
        limit(running, "actor 0", 0)
        ended = running.wait()
    assert (ended.code, ended.describe()["status"]) == (3, "failed"), ended.stderr
    assert verify_run(ended.run_dir).sound and b"disk_refuses" in ended.table("events")["kind"]
    again = run(tmp_path, recipe="runs/it", resume="must")
    assert again.code == 0 and verify_run(ended.run_dir).sound, again.stderr


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB, which only root can make."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.faults
def test_a_file_system_that_is_full_for_a_while(tmp_path, small_disk):
    """Result file, checkpoints and status alike: nothing old is harmed, nothing is lost."""
    settings = (FOREVER, SLOW, "checkpoint.every_updates=3", f"storage.run_dir={small_disk}/it")
    with start(tmp_path, *settings, "storage.flush_interval_s=0.05", recipe=CHAIN) as running:
        running.until(lambda: checkpoint.find_sets(small_disk / "it"))
        with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        for text in ("cannot be written; rows wait in memory", "tries again for up to"):
            running.until(lambda text=text: said(running, text))
        before = checkpoint.newest(small_disk / "it").update
        (small_disk / "filler").unlink()
        for text in ("is written again, after", "checkpoints are written again, after"):
            running.until(lambda text=text: said(running, text))
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(90) == 75, (tmp_path / "err.txt").read_text()
    found = verify_run(small_disk / "it")
    assert found.sound and found.notes == (), found
    assert checkpoint.newest(small_disk / "it").update > before
    updates = read_table(small_disk / "it", "updates")["update"].tolist()
    assert updates == list(range(1, len(updates) + 1))
