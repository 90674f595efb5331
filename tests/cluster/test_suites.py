"""Suites of tests/mpi on hosts that are really different, as far as MPI and its messages can tell.

Where hosts cannot be emulated the same node maps are made up instead, and a warning in pytest's summary says so.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from hpcrl.launch.launcher import find_launcher, permissions
from tests.cluster import mpi
from tests.cluster.hosts import temporary
from tests.test_mpi import functions, ran

TOP = Path(__file__).parents[2]
TIME_LIMIT_S = 600
LAYOUTS = {
    (2, 2): ("test_nodes", "test_world", "test_stream", "test_rows", "test_publish", "test_reduce"),
    (3, 1): ("test_nodes", "test_world", "test_stream", "test_rows"),
    (1, 1, 1, 1): ("test_nodes",),
}
"""Suites on so many ranks per node. Those of publication and reduction expect something of made-up maps that holds for
pairs of ranks only; what they promise of uneven nodes is looked at by test_nodes."""
ONE_HOST = (
    "test_world.test_seats_tell_where_every_rank_is",
    "test_world.test_without_a_map_the_ranks_share_this_node",
    "test_world.test_learner_communicators_follow_the_nodes",
    "test_publish.test_a_pinned_version_stays_while_the_others_come_and_go",
    "test_publish.test_a_publication_that_finds_no_buffer_is_made_up_with_the_newest",
    "test_publish.test_a_slow_reader_starts_each_segment_with_the_newest",
    "test_publish.test_a_version_that_is_gone_is_not_given",
    "test_publish.test_a_publication_rings_the_bells_of_those_who_wait_for_it",
    "test_rows.test_inside_a_node_a_row_is_written_where_it_is_read",
    "test_reduce.test_nothing_is_sent_inside_a_node",
    "test_reduce.test_nobody_passes_a_barrier_early",
)
"""Not run: tests of memory that all ranks share, or share by a made-up map."""
ONE_HOST_MAPS = ("abab", "abba", "aaab")
"""Not run: maps of otherwise fitting tests by which two ranks share memory that are on different hosts, and others not.

Divided by hosts (tests/cluster/real_nodes.py) they would be other maps than they say; "abcd" has as many nodes.
"""


def pytest_command(suites):
    command = [sys.executable, "-m", "mpi4py", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "tests.cluster.real_nodes", "-k", f"not ({' or '.join(ONE_HOST_MAPS)})"]
    for name in ONE_HOST:
        suite, function = name.split(".")
        command += ["--deselect", f"tests/mpi/{suite}.py::{function}"]
    return command + [f"tests/mpi/{suite}.py" for suite in suites]


def run_ranks(command, reports, **variables):
    """Run to the end, then what each rank ran: names of test functions, number of cases, problems."""
    environ = (
        os.environ | permissions() | {"HPCRL_MPI_REPORTS": str(reports), "OMP_NUM_THREADS": "1"} | variables
    )
    done = subprocess.run(
        command,
        env=environ,
        cwd=TOP,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    return [ran(report) for report in sorted(reports.glob("rank*.xml"))]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "+".join(map(str, layout)))
def test_on_nodes(layout, unavailable, tmp_path):
    suites = LAYOUTS[layout]
    nodes = [f"node{index + 1}" for index, ranks in enumerate(layout) for _ in range(ranks)]
    promise = {"HPCRL_TEST_NODES": ",".join(nodes)}
    if unavailable is None:
        with temporary(len(layout)) as cluster:
            command = mpi.command(cluster, layout, pytest_command(suites))
            results = run_ranks(command, tmp_path, **promise)
    else:
        warnings.warn(f"the node map {nodes} is made up on one host: {unavailable}", stacklevel=1)
        command = [find_launcher(), "-n", str(len(nodes)), *pytest_command(suites)]
        results = run_ranks(command, tmp_path, HPCRL_TEST_FAKED="1", **promise)
    assert len(results) == len(nodes)
    expected = {name for name in functions() if name.split(".")[0] in suites} - set(ONE_HOST)
    for names, cases, problems in results:
        assert problems == ["0", "0", "0"]
        assert names == expected
        assert cases == results[0][1]


def test_what_is_left_out_exists():
    assert set(ONE_HOST) < functions().keys()
    source = (TOP / "tests/mpi/test_publish.py").read_text()
    assert all(f'("{nodes}", "' in source for nodes in ONE_HOST_MAPS)
