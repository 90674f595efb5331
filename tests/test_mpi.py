"""Runs tests/mpi under the MPI launcher, on 1 to 4 ranks, and counts what ran."""

import ast
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hpcrl.launch.launcher import find_launcher, permissions
from tests.processes import gone

FOLDER = Path(__file__).parent / "mpi"
TIME_LIMIT_S = 600
ALL = frozenset(FOLDER.glob("test_*.py"))
LONG = frozenset(FOLDER.glob("test_resume*.py"))
"""Run apart from the others, each part with a time limit of its own."""
PARTS = {"resume": LONG, "others": ALL - LONG}


def functions(paths=ALL):
    """Names of the test functions in some files of tests/mpi, with their definitions, from the source."""
    found = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[f"{path.stem}.{node.name}"] = node
    return found


def left_out(part, size):
    """Names of those that do not run: where two ranks would be worlds of one (`half`), too few for a pipeline."""
    defined = functions(PARTS[part]).items() if size == 2 else ()
    return {name for name, node in defined if "with half(comm)" in ast.unparse(node)}


def run_ranks(size, targets, reports, without=()):
    """(exit code, output) of pytest on `size` ranks; the whole process group is killed at the time limit."""
    command = [find_launcher(), "-n", str(size), sys.executable, "-m", "mpi4py", "-m", "pytest", "-x", "-q"]
    command += ["-p", "no:cacheprovider", *sorted(map(str, targets))]
    for name in sorted(without):
        command += ["--deselect", "tests/mpi/{}.py::{}".format(*name.split("."))]
    environ = os.environ | permissions() | {"HPCRL_MPI_REPORTS": str(reports), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=FOLDER.parents[1],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = f"no end within {TIME_LIMIT_S} s"
        finally:
            kill_group(process)
        output.seek(0)
        return code, output.read()


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def ran(report):
    """(test functions, number of cases, problems) in one rank's JUnit file."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    cases = suite.findall("testcase")
    names = {
        f"{case.get('classname').removeprefix('tests.mpi.').split('.')[0]}.{case.get('name').partition('[')[0]}"
        for case in cases
    }
    return names, len(cases), [suite.get(kind) for kind in ("errors", "failures", "skipped")]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_on_ranks(size, part, tmp_path):
    without = left_out(part, size)
    code, output = run_ranks(size, PARTS[part], tmp_path, without)
    print(output)  # noqa: T201 - shown when something below fails
    assert code == 0
    reports = sorted(tmp_path.glob("rank*.xml"))
    assert [report.name for report in reports] == [f"rank{rank}.xml" for rank in range(size)]
    results = [ran(report) for report in reports]
    for names, _, problems in results:
        assert problems == ["0", "0", "0"]
        assert names == functions(PARTS[part]).keys() - without
    assert len({count for _, count, _ in results}) == 1


def test_there_are_many():
    assert all(PARTS.values()) and len(functions()) > 30


HEAD = """
import os, signal
from pathlib import Path
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(Path(__file__).parent / f"pid{rank}").write_text(str(os.getpid()))
MPI.COMM_WORLD.Barrier()
"""
BROKEN = {
    "fails": "def test_it(): assert rank == 0",
    "hangs": "def test_it(): rank and MPI.COMM_WORLD.recv(source=0, tag=99)",
    "leaves": "def test_it(): rank and os._exit(0)\ndef test_too(): MPI.COMM_WORLD.Barrier()",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_rank_is_seen_and_no_rank_stays(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_mpi.TIME_LIMIT_S", 20 if kind == "hangs" else 120)
    (tmp_path / "test_broken.py").write_text(HEAD + BROKEN[kind])
    code, output = run_ranks(2, [tmp_path / "test_broken.py"], tmp_path)
    # MPICH's launcher ends with 0 when a rank leaves with 0 and takes the others along; the reports tell
    assert code != 0 or len(list(tmp_path.glob("rank*.xml"))) < 2
    assert kind != "fails" or "assert 1 == 0" in output
    assert all(gone((tmp_path / f"pid{rank}").read_text()) for rank in range(2))
