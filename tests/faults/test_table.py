"""Whatever happens to a rank, whichever it is, whenever and however it was started: the same orderly end.

`pytest -m faults` runs the whole table, the default run and `pytest -m slurm` a part in which everything occurs twice.
"""

import os
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from hpcrl.storage import checkpoint
from hpcrl.storage.summary import describe
from tests.faults.cells import CELLS, KINDS, LAUNCHERS, PHASES, RANK_OF, covering
from tests.faults.launchers import LAUNCH, RUN_DIR
from tests.slurm.support import cancel_all
from tests.system.support import FOREVER, TOKEN, WITH_TESTS, processes_with

INJECT = Path(__file__).parent / "inject"
BOUND_S = 15.0
STALL_S = 2.0
SETTINGS = [
    f"storage.run_dir={RUN_DIR}",
    f"faults.stall_timeout_s={STALL_S:g}",
    "checkpoint.every_updates=5",
    "evaluation.episodes=0",
]
FEW = covering(CELLS, times=2)


def needs(cell):
    return [] if cell.launcher == "mpiexec" else [pytest.mark.slurm]


@pytest.fixture
def run(request, tmp_path):
    """Start a run in a folder by the named launcher and wait for its end; nothing of it is left afterwards."""
    environ = {"OMP_NUM_THREADS": "1", TOKEN: uuid.uuid4().hex}
    used = []

    def launch(launcher, settings, resume, **more):
        cluster = None if launcher == "mpiexec" else request.getfixturevalue("cluster")
        used.append(cluster)
        outcome = LAUNCH[launcher](cluster, tmp_path, settings, resume, WITH_TESTS | environ | more)
        return outcome, environ[TOKEN]

    yield launch
    for cluster in used:
        if cluster is not None:
            cancel_all(cluster)


def faulty(launcher, where, kind, folder, run):
    """How a run with a fault ended, in time, with one line; when the fault came, and the token of its processes."""
    note = folder / "fault.txt"
    path = os.pathsep.join([str(INJECT), WITH_TESTS["PYTHONPATH"]])
    environ = {"PYTHONPATH": path, "HPCRL_TEST_FAULT": f"{where} {kind}", "HPCRL_TEST_FAULT_NOTE": str(note)}
    ended, token = run(launcher, [*SETTINGS, FOREVER], "never", **environ)
    assert note.exists(), ended.text
    struck = float(note.read_text())
    assert ended.ended - struck < BOUND_S + STALL_S * (kind == "loop"), ended.text
    assert ended.code == 3, ended.text
    assert len(ended.lines()) == 1, ended.text
    return ended, struck, token


def gone(token, until):
    """No process of the run is left."""
    while left := processes_with(token):
        assert time.monotonic() < until, f"still alive: {left}"
        time.sleep(0.05)


def check(cell, folder, run):
    """The end of the faulty run, what it leaves, and the run that goes on with it."""
    run_dir = folder / RUN_DIR
    ended, struck, token = faulty(cell.launcher, f"{cell.role} {cell.phase}", cell.kind, folder, run)
    (line,) = ended.lines()
    assert line.startswith(f"hpcrl: {cell.role} 0 (rank {RANK_OF[cell.role]} on "), line
    assert f") {KINDS[cell.kind]}" in line, line
    assert "; last progress: " in line or cell.phase == "start", line
    gone(token, struck + BOUND_S + STALL_S)
    summary = describe(run_dir)
    assert (summary["status"], summary["exit_code"]) == ("failed", 3)
    assert summary["cause"] == line.removeprefix("hpcrl: ")
    goes_on(cell, run, run_dir)


def goes_on(cell, run, run_dir):
    """The same run, submitted again: from its last checkpoint, or anew where there is none yet."""
    sets = list((run_dir / "checkpoints").glob("[0-9]*"))
    assert bool(sets) == (cell.phase != "start")
    saved = checkpoint.newest(run_dir) if sets else None
    budget = f"budget.env_steps={400 + (saved.meta['env_steps'] if saved else 0)}"
    again, _ = run(cell.launcher, [*SETTINGS, budget], "must" if saved else "if-exists")
    assert again.code == 0, again.text
    words = f"resumed at update {saved.update} from " if saved else "the run begins again at update 0"
    assert words in again.text
    summary = describe(run_dir)
    assert (summary["attempts"], summary["status"]) == (2, "finished")


@pytest.mark.parametrize(
    ("launcher", "kind"),
    [
        ("mpiexec", "exception"),
        ("mpiexec", "os._exit(9)"),
        pytest.param("srun", "SIGKILL", marks=pytest.mark.slurm),
    ],
)
def test_before_mpi_is_up(launcher, kind, tmp_path, run):
    """The others wait in MPI for a rank that never comes, and nobody knows roles yet."""
    ended, struck, token = faulty(launcher, "2 before-MPI", kind, tmp_path, run)
    (line,) = ended.lines()
    assert line.startswith("hpcrl: rank 2 (during start-up on ") and line.endswith(f") {KINDS[kind]}")
    gone(token, struck + BOUND_S)
    assert not (tmp_path / RUN_DIR).exists()


@pytest.mark.parametrize("cell", [pytest.param(cell, id=str(cell), marks=needs(cell)) for cell in FEW])
def test_some_cells(cell, tmp_path, run):
    check(cell, tmp_path, run)


@pytest.mark.faults
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_cell(cell, tmp_path, run):
    check(cell, tmp_path, run)


def test_everything_occurs_twice_in_some_cells():
    assert len(CELLS) == 5 * 3 * 3 * 3 and len(FEW) == 10
    for values in (KINDS, RANK_OF, PHASES, LAUNCHERS):
        counts = Counter(value for cell in FEW for value in vars(cell).values() if value in values)
        assert set(counts) == set(values) and min(counts.values()) >= 2
